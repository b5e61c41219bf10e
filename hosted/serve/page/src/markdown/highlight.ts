/** Colours of code: comments, strings, numbers and keywords, by rules that most languages share. */

/** A part of a text, and its kind: `c`omment, `s`tring, `n`umber, `k`eyword, `f`unction, or none. */
export type Span = ['c' | 's' | 'n' | 'k' | 'f' | '', string];

const KEYWORDS = `abstract alignas and any as asm assert async await auto base begin bool boolean break by byte case
catch chan char class const constexpr continue crate debugger declare def default defer del delete do double dyn elif
else elsif end ensure enum except exec explicit export extends extern false final finally float fn for foreach friend
from fun func function global go goto if impl implements import in inline instanceof int interface internal is lambda
let local long loop match mod module move mut namespace native new nil None nonlocal noexcept not null nullptr of
operator or out override package params pass print private protected pub public raise readonly record ref register
rescue return sealed self Self select short signed sizeof static str string struct super switch synchronized template
then this throw throws trait transient true True False try type typedef typename typeof union unless unsafe unsigned
until use using val var virtual void volatile when where while with yield u8 u16 u32 u64 usize i8 i16 i32 i64 isize
f32 f64 undefined`.split(/\s+/);
const SQL = `add all alter and as asc between by case check column constraint create cross database default delete desc
distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit
not null offset on or order outer primary references right select set table then union unique update values view when
where with`.split(/\s+/);
const SHELL = `case do done elif else esac export fi for function if in local return select then until while echo cd
exit set unset source sudo alias`.split(/\s+/);

const known = new Set(KEYWORDS);
const sql = new Set(SQL);
const shell = new Set(SHELL);

const STRING = `"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\`?`;
const NUMBER = '\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.[\\d_]+)?(?:[eE][+-]?\\d+)?)[a-zA-Z\\d_]*';
const WORD = '[A-Za-z_$][\\w$]*';
const C_COMMENT = '\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)';
const HASH_COMMENT = '(?<![\\w$&])#[^\\n]*';
const TRIPLE = `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)`;

/** A quote that no other one ends begins a lifetime. */
const RUST_STRING = `"(?:\\\\[\\s\\S]|[^"\\\\])*"?|'(?:\\\\(?:u\\{[\\da-fA-F_]*\\}|x[\\da-fA-F]{2}|.)|[^'\\\\\\n])'`;

function rule(comment: string, strings = STRING): RegExp {
  return new RegExp(`(${comment})|(${strings})|(${NUMBER})|(${WORD})`, 'g');
}

const HASH = rule(HASH_COMMENT, `${TRIPLE}|${STRING}`);
const RULES: [names: RegExp, rule: RegExp, words: ReadonlySet<string>][] = [
  [/^(rs|rust)$/, rule(C_COMMENT, RUST_STRING), known],
  [/^(py|python|rb|ruby|r|jl|julia|elixir|ex|exs|nim|perl|pl|gd|cmake)$/, HASH, known],
  [/^(sh|bash|zsh|fish|shell|console|dockerfile|make|makefile|ps1|powershell)$/, HASH, shell],
  [/^(ya?ml|toml|ini|conf|properties|env)$/, HASH, new Set(['true', 'false', 'null', 'yes', 'no'])],
  [/^(sql|pgsql|mysql|sqlite)$/, rule(`--[^\\n]*|${C_COMMENT}`), sql],
  [/^(lua|hs|haskell|elm|ada|vhdl)$/, rule('--[^\\n]*'), known],
  [/^(html?|xml|svg|vue|svelte)$/, rule('<!--[\\s\\S]*?(?:-->|$)'), new Set()],
  [/^(css|scss|less)$/, rule('\\/\\*[\\s\\S]*?(?:\\*\\/|$)'), new Set()],
  [/^(te?xt|plain|plaintext|md|markdown|log|diff|patch)$/, /$^/g, new Set()],
];
const OTHER = rule(C_COMMENT);

/** The parts of a text in a language. Without a known language, nothing is coloured. */
export function highlight(text: string, language: string): Span[] {
  if (!language || text.length > CHARS_MAX) return [['', text]];
  const name = language.toLowerCase();
  const [, rule, words] = RULES.find(([names]) => names.test(name)) ?? [null, OTHER, known];
  const spans: Span[] = [];
  let end = 0;
  const push = (kind: Span[0], part: string): void => {
    const last = spans.at(-1);
    if (last && last[0] === kind) last[1] += part;
    else if (part) spans.push([kind, part]);
  };
  for (const found of text.matchAll(rule)) {
    const [whole, comment, string, number, word] = found;
    push('', text.slice(end, found.index));
    end = found.index + whole.length;
    push(comment ? 'c' : string ? 's' : number ? 'n' : kindOfWord(word ?? '', words, text, end), whole);
  }
  push('', text.slice(end));
  return spans;
}

function kindOfWord(word: string, words: ReadonlySet<string>, text: string, end: number): Span[0] {
  if (words.has(word) || (words === sql && sql.has(word.toLowerCase()))) return 'k';
  return text[end] === '(' ? 'f' : '';
}

const CHARS_MAX = 40_000;
