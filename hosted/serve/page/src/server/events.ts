/** Server-sent events. */

/** An event: its data, and the id with which the stream can be taken up after it. */
export interface ServerEvent {
  data: string;
  id?: string;
}

/** Splits a stream into its events. Comments, which keep the connection alive, are left out. */
export class EventParser {
  #rest = '';
  #data: string[] = [];
  #id: string | undefined;

  /** The events that end in this part of the stream. */
  push(part: string): ServerEvent[] {
    const lines = (this.#rest + part).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? '';
    const events: ServerEvent[] = [];
    for (const line of lines) {
      const event = this.#line(line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line: string): ServerEvent | undefined {
    if (line === '') {
      const data = this.#data;
      this.#data = [];
      return data.length ? { data: data.join('\n'), ...(this.#id ? { id: this.#id } : {}) } : undefined;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') this.#data.push(value);
    if (field === 'id') this.#id = value;
    return undefined;
  }
}
