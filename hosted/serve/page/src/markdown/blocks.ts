/** Text to blocks. While a text grows, only its last blocks are read again. */
import { Lexer, type Token } from 'marked';

/** The blocks of a text that may grow. */
export class Blocks {
  #text = '';
  #tokens: Token[] = [];

  /** The blocks of `text`. Those of an earlier text that begins it are the same objects. */
  of(text: string): Token[] {
    if (text === this.#text) return this.#tokens;
    let kept: Token[] = [];
    // A later line can change the last block, or join it with the one before.
    if (text.startsWith(this.#text)) kept = this.#tokens.slice(0, -REREAD);
    // A link's address may be defined anywhere, and a definition changes what was read before.
    if (/^ {0,3}\[[^\]]+\]:/m.test(text)) kept = [];
    const from = kept.reduce((n, token) => n + token.raw.length, 0);
    this.#text = text;
    this.#tokens = [...kept, ...new Lexer({ gfm: true, breaks: false }).lex(text.slice(from))];
    // The lexer normalises line ends, so lengths of raw texts may not add up.
    if (text.includes('\r') || text.includes('\t')) this.#text = '\0';
    return this.#tokens;
  }
}

const REREAD = 3;
