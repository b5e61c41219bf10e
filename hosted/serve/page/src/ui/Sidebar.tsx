/** The list of conversations: search, rename, delete, export and import. */
import { signal, useComputed, useSignalEffect } from '@preact/signals';
import type { VNode } from 'preact';
import { useRef, useState } from 'preact/hooks';
import { forget, importFile } from '../chat/actions';
import { activities } from '../chat/writing';
import { changeChat, chats, currentId, show } from '../data/chats';
import { readMessages } from '../data/store';
import { exportAll, type Imported } from '../data/transfer';
import { explain } from '../server/http';
import type { Chat } from '../types';
import { useFocus } from './focus';
import { IconButton } from './icons';
import { notify } from './notices';
import { focusComposer, isListOpen, narrow } from './panels';

const query = signal('');
/** The conversations whose messages have the query; null without a query. */
const found = signal<ReadonlySet<string> | null>(null);

/** Searches titles at once, and messages as they are read. */
async function search(text: string): Promise<void> {
  query.value = text;
  const wanted = text.trim().toLowerCase();
  if (!wanted) {
    found.value = null;
    return;
  }
  const titled = chats.value.filter((chat) => chat.title.toLowerCase().includes(wanted));
  found.value = new Set(titled.map((chat) => chat.id));
  // Not for every letter of a word that is being typed.
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  if (query.value !== text) return;
  const messages = await readMessages().catch(() => []);
  if (query.value !== text) return;
  const said = messages.filter((message) => message.content.toLowerCase().includes(wanted));
  found.value = new Set([...titled.map((chat) => chat.id), ...said.map((message) => message.chat)]);
}

/** The address of a conversation. An imported one may have any id. */
function addressOf(id: string): string {
  return `#/${encodeURIComponent(id)}`;
}

/** Shows a conversation; null for a new one. */
export function go(id: string | null): void {
  location.hash = id === null ? '' : addressOf(id);
  // At once, before the browser reports the new address.
  void show(id);
  isListOpen.value = false;
  focusComposer();
}

/** Where the list covers the page, what is below it cannot be reached. */
function takeFocus(list: HTMLElement | null): void {
  if (!list?.contains(document.activeElement)) list?.querySelector('button')?.focus();
}

/** The list. */
export function Sidebar(): VNode {
  const list = useRef<HTMLElement>(null);
  useSignalEffect(() => {
    if (isListOpen.value) requestAnimationFrame(() => takeFocus(list.current));
    else if (list.current?.contains(document.activeElement) && narrow.matches) {
      requestAnimationFrame(() => document.querySelector<HTMLElement>('.bar [aria-label="Conversations"]')?.focus());
    }
  });
  const shown = useComputed(() => chats.value.filter((chat) => found.value?.has(chat.id) ?? true));
  return (
    <nav class={`sidebar ${isListOpen.value ? 'open' : ''}`} aria-label="Conversations" ref={list}>
      <button type="button" class="new" onClick={() => go(null)}>
        New chat
      </button>
      <input
        type="search"
        id="search"
        placeholder="Search"
        aria-label="Search conversations"
        value={query.value}
        onInput={(event) => void search(event.currentTarget.value)}
      />
      <ul class="chats">
        {shown.value.map((chat) => (
          <Entry key={chat.id} chat={chat} />
        ))}
        {shown.value.length === 0 && <li class="hint">{found.value ? 'Nothing found' : 'No conversation yet'}</li>}
      </ul>
      <Transfer />
    </nav>
  );
}

function Entry({ chat }: { chat: Chat }): VNode {
  const [mode, setMode] = useState<'shown' | 'renamed' | 'deleted'>('shown');
  const isCurrent = currentId.value === chat.id;
  const isBusy = useComputed(() => [...activities.value.values()].some((activity) => activity.chat === chat.id)).value;
  if (mode === 'renamed') return <Rename chat={chat} onEnd={() => setMode('shown')} />;
  if (mode === 'deleted') return <Confirm chat={chat} onKeep={() => setMode('shown')} />;
  return (
    <li class={`${isCurrent ? 'current' : ''} ${isBusy ? 'busy' : ''}`}>
      <a href={addressOf(chat.id)} aria-current={isCurrent ? 'page' : undefined} onClick={() => (isListOpen.value = false)}>
        {chat.title}
      </a>
      <IconButton icon="edit" label={`Rename ${chat.title}`} onClick={() => setMode('renamed')} />
      <IconButton icon="delete" label={`Delete ${chat.title}`} onClick={() => setMode('deleted')} />
    </li>
  );
}

function Rename({ chat, onEnd }: { chat: Chat; onEnd: () => void }): VNode {
  const field = useFocus<HTMLInputElement>();
  const rename = (title: string): void => {
    onEnd();
    if (title.trim() && title !== chat.title) void changeChat(chat.id, { title: title.trim(), titled: true });
  };
  return (
    <li>
      <input
        class="rename"
        aria-label="New title"
        defaultValue={chat.title}
        ref={field}
        onBlur={(event) => rename(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter') rename(event.currentTarget.value);
          if (event.key === 'Escape') {
            event.stopPropagation();
            event.currentTarget.value = chat.title;
            onEnd();
          }
        }}
      />
    </li>
  );
}

function Confirm({ chat, onKeep }: { chat: Chat; onKeep: () => void }): VNode {
  const button = useFocus<HTMLButtonElement>();
  return (
    <li class="confirm">
      <span>Delete “{chat.title}”?</span>
      <button type="button" class="danger" ref={button} onClick={() => void remove(chat.id)}>
        Delete
      </button>
      <button type="button" onClick={onKeep}>
        Keep
      </button>
    </li>
  );
}

async function remove(id: string): Promise<void> {
  const wasShown = currentId.value === id;
  await forget(id);
  if (wasShown) go(null);
}

function Transfer(): VNode {
  const picker = useRef<HTMLInputElement>(null);
  const read = async (files: FileList | null): Promise<void> => {
    for (const file of files ?? []) {
      try {
        const done = await importFile(await file.text());
        notify(done ? saidOf(done) : `Nothing was imported from ${file.name}.`);
      } catch (error) {
        notify(`${file.name}: ${explain(error)}`, 'error');
      }
    }
  };
  return (
    <div class="transfer">
      <button type="button" onClick={() => void download()}>
        Export all
      </button>
      <button type="button" onClick={() => picker.current?.click()}>
        Import
      </button>
      <input
        ref={picker}
        type="file"
        accept=".json,.jsonl,application/json"
        aria-label="File to import"
        hidden
        multiple
        onChange={(event) => {
          const field = event.currentTarget;
          void read(field.files).then(() => (field.value = ''));
        }}
      />
    </div>
  );
}

/** What an import did, in words. */
function saidOf({ chats, messages, left, systems }: Imported): string {
  const out = [
    ...(left ? [plural(left, 'attachment that is not text', 'attachments that are not text')] : []),
    ...(systems ? [plural(systems, 'system prompt of another branch', 'system prompts of other branches')] : []),
  ];
  const verb = left + systems === 1 ? 'was' : 'were';
  return `Imported ${plural(chats, 'conversation')} with ${plural(messages, 'message')}${out.length ? `; ${out.join(' and ')} ${verb} left out` : ''}.`;
}

async function download(): Promise<void> {
  try {
    const url = URL.createObjectURL(new Blob([await exportAll()], { type: 'application/json' }));
    const link = document.createElement('a');
    link.href = url;
    link.download = `sluice-conversations-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } catch (error) {
    notify(`The conversations could not be exported: ${explain(error)}`, 'error');
  }
}

function plural(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}

const PAUSE_MS = 150;
