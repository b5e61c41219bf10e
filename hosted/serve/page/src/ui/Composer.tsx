/** The field for messages. */
import { useSignalEffect } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { lastQuestion, sendMessage } from '../chat/actions';
import { activityOf, stop } from '../chat/writing';
import { currentId, path } from '../data/chats';
import { propsOf } from '../server/models';
import type { TextFile } from '../types';
import { Files, readFiles } from './Files';
import { Icon, IconButton } from './icons';
import { wantsFocus } from './panels';

/** What is typed but not sent, by conversation. */
const drafts = new Map<string | null, { text: string; files: TextFile[] }>();

/** The field, with its files. */
export function Composer(): VNode {
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [text, setText] = useState('');
  const [files, setFiles] = useState<TextFile[]>([]);
  const [isOver, setOver] = useState(false);
  const chat = currentId.value;
  const writing = path.value.at(-1);
  const isWriting = writing !== undefined && activityOf(writing) !== undefined;

  useLayoutEffect(() => {
    const draft = drafts.get(chat);
    setText(draft?.text ?? '');
    setFiles(draft?.files ?? []);
  }, [chat]);
  useEffect(() => void drafts.set(chat, { text, files }), [text, files]);
  useEffect(() => fit(area.current), [text]);
  useSignalEffect(() => {
    if (wantsFocus.value > 0) area.current?.focus();
  });

  const take = async (found: Iterable<File>): Promise<void> => {
    const read = await readFiles(found);
    setFiles((files) => [...files, ...read]);
  };
  useDrop(setOver, (found) => void take(found));

  const submit = (): void => {
    const typed = text.trim();
    if (isWriting || (!typed && !files.length)) return;
    if (!sendMessage(typed, files)) return;
    drafts.delete(chat);
    setText('');
    setFiles([]);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const sends = event.key === 'Enter' && !event.shiftKey && !event.isComposing;
    if (sends && (!isTouch() || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
    if (event.key === 'ArrowUp' && !text) {
      const question = lastQuestion();
      const editor = document.querySelector<HTMLElement>(`[data-id="${question?.id}"] [aria-label="Edit"]`);
      editor?.click();
    }
  };

  return (
    <form
      class={`composer ${isOver ? 'over' : ''}`}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {files.length > 0 && (
        <Files files={files} onRemove={(at) => setFiles(files.filter((_, i) => i !== at))} />
      )}
      <textarea
        ref={area}
        rows={1}
        value={text}
        placeholder="Write a message"
        aria-label="Message"
        enterkeyhint="enter"
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={(event) => {
          // Spreadsheets and word processors put a picture beside the text.
          const isText = event.clipboardData?.types.includes('text/plain');
          const pasted = [...(event.clipboardData?.files ?? [])];
          if (pasted.length && !isText) {
            event.preventDefault();
            void take(pasted);
          }
        }}
      />
      <div class="row">
        <IconButton icon="attach" label="Add text files" onClick={() => picker.current?.click()} />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            void take([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = '';
          }}
        />
        <span class="hint">{isOver ? 'Drop text files here' : hint()}</span>
        {isWriting ? (
          <button type="button" class="send" aria-label="Stop" title="Stop (Esc)" onClick={() => stop(writing.id)}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="send" aria-label="Send" title="Send" disabled={!text.trim() && !files.length}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

/** How full the context is, or what the keys do. */
function hint(): string {
  const run = path.value.findLast((message) => message.runs?.length)?.runs?.at(-1);
  const size = propsOf(run?.model)?.default_generation_settings.n_ctx;
  if (run?.timings && size) {
    const { cache_n: cached, prompt_n: read, predicted_n: written } = run.timings;
    return `${(cached + read + written).toLocaleString('en')} of ${size.toLocaleString('en')} tokens`;
  }
  return isTouch() ? '' : 'Enter sends, Shift+Enter begins a line';
}

/** Whether this is a phone or the like, where Enter begins a line. */
function isTouch(): boolean {
  return matchMedia('(pointer: coarse)').matches;
}

/** Files may be dropped anywhere on the page. */
function useDrop(setOver: (isOver: boolean) => void, onFiles: (files: File[]) => void): void {
  useEffect(() => {
    const has = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') ?? false;
    const over = (event: DragEvent): void => {
      if (!has(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent): void => {
      if (event.relatedTarget === null) setOver(false);
    };
    const drop = (event: DragEvent): void => {
      setOver(false);
      if (!has(event)) return;
      event.preventDefault();
      onFiles([...(event.dataTransfer?.files ?? [])]);
    };
    document.addEventListener('dragover', over);
    document.addEventListener('dragleave', leave);
    document.addEventListener('drop', drop);
    return () => {
      document.removeEventListener('dragover', over);
      document.removeEventListener('dragleave', leave);
      document.removeEventListener('drop', drop);
    };
  }, []);
}

/** Makes a field as high as its text, up to the maximum in the style sheet. */
function fit(area: HTMLTextAreaElement | null): void {
  if (!area) return;
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight}px`;
}
