"""The engine `transformers`: models of several stages, by the library's own classes. `engine` is its beginning."""
