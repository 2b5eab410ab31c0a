// Sound as it comes: a streamed WAV file's bytes into samples, samples into one unbroken sound.

// Between a sound's first samples and its begin, and after every gap: what is late by less makes no (further) gap.
const LEAD_S = 0.15;

/** A streamed WAV file of 16-bit mono, piece by piece in base64. `rate` is known from the first samples on. */
export class WavStream {
  constructor() {
    this.rate = 0;
    this.kept = new Uint8Array(0);
  }

  /** The samples that are whole by now: a Float32Array in -1..1, perhaps empty. */
  add(base64) {
    const came = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const bytes = new Uint8Array(this.kept.length + came.length);
    bytes.set(this.kept);
    bytes.set(came, this.kept.length);
    const from = this.rate ? 0 : this.header(bytes);
    if (!this.rate) {
      this.kept = bytes;
      return new Float32Array(0);
    }
    const count = Math.floor((bytes.length - from) / 2);
    const view = new DataView(bytes.buffer, from);
    const samples = Float32Array.from({ length: count }, (_, n) => view.getInt16(2 * n, true) / 32768);
    this.kept = bytes.slice(from + 2 * count);
    return samples;
  }

  /** Where the samples begin; the server's header has 44 bytes. */
  header(bytes) {
    if (bytes.length < 44) return 0;
    this.rate = new DataView(bytes.buffer).getUint32(24, true);
    return 44;
  }
}

/**
 * Plays pieces one after another without a gap. The context has the sound's own rate, so that a piece begins on the
 * very sample where the one before it ends, and nothing is resampled piece by piece.
 */
export class Player {
  constructor() {
    this.context = null;
    this.begin = 0; // when, on the context's clock, the sound's first sample is (or would have been) heard
    this.frames = 0;
    this.playing = new Set();
  }

  add(samples, rate) {
    if (!samples.length) return;
    if (this.context === null) this.open(rate);
    const buffer = this.context.createBuffer(1, samples.length, rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.context.destination);
    source.onended = () => this.playing.delete(source);
    this.playing.add(source);
    source.start(this.next(rate));
    this.frames += samples.length;
  }

  open(rate) {
    this.context = new AudioContext({ sampleRate: rate });
    this.begin = this.soon(rate);
  }

  /** When the next piece begins. */
  next(rate) {
    const when = this.begin + this.frames / rate;
    if (when >= this.context.currentTime) return when;
    this.begin = this.soon(rate) - this.frames / rate;
    return this.begin + this.frames / rate;
  }

  soon(rate) {
    return Math.ceil((this.context.currentTime + LEAD_S) * rate) / rate;
  }

  /** Whether the browser holds the sound back until somebody asks for it. */
  get blocked() {
    return this.context?.state === "suspended" && this.playing.size > 0;
  }

  get active() {
    return this.playing.size > 0;
  }

  /** Seconds that have come. */
  get length() {
    return this.context === null ? 0 : this.frames / this.context.sampleRate;
  }

  /** Seconds that have been heard. */
  get heard() {
    if (this.context === null) return 0;
    return Math.min(Math.max(this.context.currentTime - this.begin, 0), this.length);
  }

  resume() {
    return this.context?.resume();
  }

  stop() {
    for (const source of this.playing) source.stop();
    this.playing.clear();
    this.context?.close();
    this.context = null;
    this.frames = 0;
  }
}
