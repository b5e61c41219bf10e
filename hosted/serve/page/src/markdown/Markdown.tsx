/** Markdown as elements. Nothing becomes HTML text: a model's tags are shown as they were written. */
import type { Token, Tokens } from 'marked';
import type { ComponentChildren, VNode } from 'preact';
import { memo } from '../ui/memo';
import { useRef } from 'preact/hooks';
import { Blocks } from './blocks';
import { CodeBlock } from './CodeBlock';

/** A text in Markdown. */
export function Markdown({ text }: { text: string }): VNode {
  const blocks = useRef<Blocks | null>(null);
  blocks.current ??= new Blocks();
  let level = 1;
  return (
    <div class="markdown">
      {blocks.current.of(text).map((token, i) => {
        // No level is left out, as readers by ear move by them. The page's own heading is the first.
        if (token.type === 'heading') level = Math.min(6, level + 1, (token as Tokens.Heading).depth + 1);
        return <Block key={i} token={token} level={level} />;
      })}
    </div>
  );
}

/** A block is drawn again only if its text changes. */
const Block = memo(
  ({ token, level }: { token: Token; level?: number }) => <>{block(token, level)}</>,
  (a, b) => a.level === b.level && (a.token === b.token || (a.token.raw === b.token.raw && a.token.type === b.token.type)),
);

function blocksOf(tokens: readonly Token[] | undefined): ComponentChildren {
  return tokens?.map((token, i) => <Block key={i} token={token} />);
}

function block(token: Token, level?: number): ComponentChildren {
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'heading': {
      // A heading in a list or quotation is none of the text's.
      const Heading = (level ? `h${level}` : 'p') as 'h2';
      return <Heading class={`heading depth-${(token as Tokens.Heading).depth}`}>{inline(token.tokens)}</Heading>;
    }
    case 'code':
      return <CodeBlock text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ''} />;
    case 'blockquote':
      return <blockquote>{blocksOf(token.tokens)}</blockquote>;
    case 'list':
      return list(token as Tokens.List);
    case 'table':
      return table(token as Tokens.Table);
    case 'hr':
      return <hr />;
    case 'paragraph':
      return <p>{inline(token.tokens)}</p>;
    case 'html':
      return <p class="raw">{token.raw.trim()}</p>;
    case 'text':
      return token.tokens ? inline(token.tokens) : plain(token as Tokens.Text);
    default:
      return inline([token]);
  }
}

function list(token: Tokens.List): VNode {
  const items = token.items.map((item, i) => (
    <li key={i} class={item.task ? 'task' : undefined}>
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? 'done' : 'open'} />}
      {blocksOf(item.tokens.filter((part) => part.type !== 'checkbox'))}
    </li>
  ));
  return token.ordered ? <ol start={token.start === '' ? 1 : token.start}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table): VNode {
  const aligned = (i: number): string | undefined => {
    const align = token.align[i];
    return align ? `align-${align}` : undefined;
  };
  return (
    <div class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, i) => (
              <th key={i} scope="col" class={aligned(i)}>
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, i) => (
                <td key={i} class={aligned(i)}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[] | undefined): ComponentChildren {
  return tokens?.map((token) => {
    switch (token.type) {
      case 'strong':
        return <strong>{inline(token.tokens)}</strong>;
      case 'em':
        return <em>{inline(token.tokens)}</em>;
      case 'del':
        return <del>{inline(token.tokens)}</del>;
      case 'codespan':
        return <code>{(token as Tokens.Codespan).text}</code>;
      case 'br':
        return <br />;
      case 'link':
        return link((token as Tokens.Link).href, inline(token.tokens));
      case 'image':
        // Loading it would tell another server what is read here.
        return link((token as Tokens.Image).href, `${(token as Tokens.Image).text || 'image'} ↗`);
      case 'html':
        // The one tag that Markdown has no other way to write, in tables.
        return /^<br\s*\/?>$/i.test(token.raw) ? <br /> : token.raw;
      case 'text':
        return token.tokens ? inline(token.tokens) : plain(token as Tokens.Text);
      default:
        return 'text' in token ? String(token.text) : token.raw;
    }
  });
}

/** Text without Markdown, in which the lexer leaves entities as they are. */
function plain(token: Tokens.Text | Tokens.Escape): string {
  return token.text.replace(/&(#\d{1,7}|#x[\da-f]{1,6}|amp|lt|gt|quot|apos|nbsp);/gi, entity);
}

function entity(whole: string, name: string): string {
  if (name.startsWith('#')) {
    const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  }
  return { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0' }[name.toLowerCase()] ?? whole;
}

/** A link, if its address is one that a page may open. */
function link(href: string, children: ComponentChildren): ComponentChildren {
  if (!/^(https?:|mailto:)/i.test(href)) return <span title={href}>{children}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
