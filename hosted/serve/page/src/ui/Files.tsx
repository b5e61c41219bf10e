/** Text files in messages. */
import type { VNode } from 'preact';
import type { TextFile } from '../types';
import { Icon, IconButton } from './icons';
import { notify } from './notices';

/** Files, which unfold; with `onRemove`, each can be taken out. */
export function Files({ files, onRemove }: { files: readonly TextFile[]; onRemove?: (at: number) => void }): VNode {
  return (
    <ul class="files">
      {files.map((file, i) => (
        <li key={i}>
          <details class="fold">
            <summary>
              <Icon name="file" /> {file.name} <small>{size(file.text)}</small>
            </summary>
            <pre tabIndex={0}>{file.text.slice(0, SHOWN_CHARS)}</pre>
          </details>
          {onRemove && <IconButton icon="close" label={`Remove ${file.name}`} onClick={() => onRemove(i)} />}
        </li>
      ))}
    </ul>
  );
}

/** Reads files; those that are not text are left out with a notice. */
export async function readFiles(files: Iterable<File>): Promise<TextFile[]> {
  const read: TextFile[] = [];
  for (const file of files) {
    if (file.size > BYTES_MAX) {
      notify(`${file.name} is larger than ${BYTES_MAX >> 20} MiB.`, 'error');
      continue;
    }
    const text = textOf(await file.arrayBuffer());
    if (text === null) notify(`${file.name} is not a text file.`, 'error');
    else read.push({ name: file.name, text });
  }
  return read;
}

/** Bytes as text, or null if they are something else. */
function textOf(bytes: ArrayBuffer): string | null {
  const [a, b] = new Uint8Array(bytes.slice(0, 2));
  const encoding = a === 0xff && b === 0xfe ? 'utf-16le' : a === 0xfe && b === 0xff ? 'utf-16be' : 'utf-8';
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}

function size(text: string): string {
  return text.length < 1000 ? `${text.length} characters` : `${Math.round(text.length / 1000)}k characters`;
}

const BYTES_MAX = 4 << 20;
const SHOWN_CHARS = 20_000;
