// The page that shows the API: each path of the OpenAPI document, and each object that goes in or out.

import { get } from "/pages/api.js";
import { at, complain, element, pause, row } from "/pages/dom.js";

const EVERY_MS = 2000;
const SCHEMAS = "#/components/schemas/";
const LIMITS = {
  minimum: "at least",
  exclusiveMinimum: "above",
  maximum: "at most",
  exclusiveMaximum: "below",
  minLength: "characters, at least",
  maxLength: "characters, at most",
  minItems: "items, at least",
  maxItems: "items, at most",
};

function show(api) {
  at("version").textContent = api.info.version;
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => shown(`${method.toUpperCase()} ${path}`, operation)),
  );
  at("operations").replaceChildren(...operations);
  at("schemas").replaceChildren(...Object.entries(api.components.schemas).map(([name, schema]) => object(name, schema)));
}

function shown(name, operation) {
  const card = element("section", "card");
  card.append(element("h2", "", name), element("p", "", plain(operation.summary)));
  const parameters = (operation.parameters ?? []).map((one) =>
    cells(one.name, kind(one.schema), about(one, one.required ? ["required"] : [])),
  );
  if (parameters.length) card.append(table(["Header or part", "Type", "About"], parameters));
  const body = operation.requestBody?.content["application/json"]?.schema;
  if (body) card.append(within("p", "Body: ", kind(body)));
  const answers = Object.entries(operation.responses).map(([status, answer]) => cells(status, answer.description));
  card.append(table(["Status", "About"], answers));
  return card;
}

function object(name, schema) {
  const card = element("section", "card");
  card.id = name;
  card.append(element("h2", "", name));
  if (schema.description) card.append(element("p", "", plain(schema.description)));
  const required = new Set(schema.required);
  const fields = Object.entries(schema.properties ?? {}).map(([field, inner]) =>
    cells(field, kind(inner), about(inner, required.has(field) ? ["required"] : byDefault(inner))),
  );
  card.append(table(["Field", "Type", "About"], fields));
  return card;
}

/** A schema's type in words, with links to the objects that it names. */
function kind(schema) {
  const made = element("span");
  if (schema.$ref) {
    const name = schema.$ref.replace(SCHEMAS, "");
    const link = element("a", "", name);
    link.href = `#${name}`;
    made.append(link);
  } else if (schema.anyOf ?? schema.oneOf) {
    made.append(...joined((schema.anyOf ?? schema.oneOf).filter((one) => one.type !== "null").map(kind)));
  } else if ("enum" in schema || "const" in schema) {
    made.append((schema.enum ?? [schema.const]).map((one) => JSON.stringify(one)).join(" or "));
  } else if (schema.type === "array") {
    made.append("list of ", kind(schema.items ?? {}));
  } else {
    made.append([schema.type ?? "any"].flat().join(" or "));
  }
  return made;
}

function joined(nodes) {
  return nodes.flatMap((node, index) => (index ? [" or ", node] : [node]));
}

function byDefault(schema) {
  return schema.default === undefined || schema.default === null ? [] : [`default ${JSON.stringify(schema.default)}`];
}

function about(schema, first) {
  const said = [schema, ...(schema.anyOf ?? [])].flatMap((one) => [
    ...(one.description ? [plain(one.description)] : []),
    ...Object.entries(LIMITS).filter(([key]) => key in one).map(([key, words]) => `${words} ${one[key]}`),
  ]);
  return [...first, ...said].join("; ");
}

/** Without the marks of code, which are of no use here. */
function plain(text) {
  return text.replaceAll("`", "").replace(/\.$/, "");
}

function table(heads, rows) {
  const made = element("table", "prose");
  const head = element("tr");
  for (const name of heads) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const top = element("thead");
  const body = element("tbody");
  top.append(head);
  body.append(...rows);
  made.append(top, body);
  return made;
}

function cells(name, ...inner) {
  return row(name, inner.map((one) => within("td", one ?? "")));
}

/** A text or an element, in an element of its own. */
function within(tag, ...inner) {
  const made = element(tag);
  made.append(...inner);
  return made;
}

/** The document, once the server gives it. */
async function asked() {
  for (;;) {
    try {
      return await get("/openapi.json");
    } catch (problem) {
      complain(problem);
    }
    await pause(EVERY_MS);
  }
}

show(await asked());
complain(null);
if (location.hash) at(location.hash.slice(1))?.scrollIntoView();
