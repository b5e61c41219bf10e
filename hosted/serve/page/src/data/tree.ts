/** Branches: a conversation is a tree of messages, of which one path is shown. */
import type { Message } from '../types';

/** The messages from the first one to `leaf`. */
export function pathTo(all: ReadonlyMap<string, Message>, leaf: string | null): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  let at = leaf;
  while (at !== null && !seen.has(at)) {
    seen.add(at);
    const message = all.get(at);
    if (!message) break;
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

/** The messages with the same parent, oldest first. */
export function siblings(all: ReadonlyMap<string, Message>, message: Message): Message[] {
  return childrenOf(all, message.parent).filter((other) => other.chat === message.chat);
}

function childrenOf(all: ReadonlyMap<string, Message>, parent: string | null): Message[] {
  const found = [...all.values()].filter((message) => message.parent === parent);
  return found.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** The end of the newest branch that begins with a message. */
export function newestLeaf(all: ReadonlyMap<string, Message>, from: string): string {
  let at = from;
  for (;;) {
    const next = childrenOf(all, at).at(-1);
    if (!next) return at;
    at = next.id;
  }
}

/** A message and all that follow it, on any branch. */
export function subtree(all: ReadonlyMap<string, Message>, from: string): string[] {
  const found = [from];
  for (let i = 0; i < found.length; i += 1) {
    found.push(...childrenOf(all, found[i] as string).map((message) => message.id));
  }
  return found;
}
