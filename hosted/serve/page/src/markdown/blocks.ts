/** Text to blocks. While a text grows, only its last blocks are read again. */
import { Lexer, type Token, Tokenizer, type Tokens } from 'marked';

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
    this.#tokens = [...kept, ...lex(text.slice(from))];
    // The lexer normalises line ends, so lengths of raw texts may not add up.
    if (text.includes('\r') || text.includes('\t')) this.#text = '\0';
    return this.#tokens;
  }
}

function lex(text: string): Token[] {
  try {
    return new BoundedLexer().lex(text);
  } catch {
    // A text is shown in any case.
    return [{ type: 'text', raw: text, text } as Tokens.Text];
  }
}

/** Reads Markdown as far as a person would write it: what is nested deeper, or has more marks, stays as it was written. */
class BoundedLexer extends Lexer {
  #depth = 0;

  constructor() {
    super({ gfm: true, breaks: false, tokenizer: new MathTokenizer() });
  }

  override blockTokens(text: string, tokens: Token[] = [], ...rest: unknown[]): never {
    return this.#within(text, tokens, () => super.blockTokens(text, tokens, ...(rest as [])));
  }

  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    // Each mark may be compared with each other one.
    if (text.length > MARKS_MAX && (text.match(/[*_~`[\]<]/g)?.length ?? 0) > MARKS_MAX) return push(tokens, text);
    return this.#within(text, tokens, () => super.inlineTokens(text, tokens));
  }

  #within(text: string, tokens: Token[], read: () => Token[]): never {
    if (this.#depth >= DEPTH_MAX) return push(tokens, text) as never;
    this.#depth += 1;
    try {
      return read() as never;
    } finally {
      this.#depth -= 1;
    }
  }
}

function push(tokens: Token[], text: string): Token[] {
  tokens.push({ type: 'text', raw: text, text } as Tokens.Text);
  return tokens;
}

/** Keeps formulas as they were written: `\(x^2\)` is not an escaped parenthesis, and its underscores are not marks. */
class MathTokenizer extends Tokenizer {
  override escape(text: string): Tokens.Escape | undefined {
    const formula = /^\\\([^\n]+?\\\)|^\\\[[^]+?\\\]/.exec(text)?.[0];
    return formula === undefined ? super.escape(text) : { type: 'escape', raw: formula, text: formula };
  }
}

const REREAD = 3;
const DEPTH_MAX = 24;
const MARKS_MAX = 1500;
