/** Starts the page. */
import { effect } from '@preact/signals';
import { render } from 'preact';
import { takeUp } from './chat/writing';
import { chats, current, currentId, path, settings, show, start } from './data/chats';
import { followTheme } from './data/preferences';
import { connect } from './server/models';
import { App } from './ui/App';
import { listen } from './ui/keyboard';
import { focusComposer } from './ui/panels';

/** Shows the conversation that the address names. */
async function follow(): Promise<void> {
  const id = decoded(/^#\/(.+)$/.exec(location.hash)?.[1]);
  await show(id !== null && chats.value.some((chat) => chat.id === id) ? id : null);
}

function decoded(part: string | undefined): string | null {
  try {
    return part === undefined ? null : decodeURIComponent(part);
  } catch {
    return null;
  }
}

followTheme();
listen();
const root = document.getElementById('app');
if (root) {
  root.replaceChildren();
  render(<App />, root);
}
addEventListener('hashchange', () => void follow());
void start().then(async () => {
  await follow();
  // An answer that is open is not being written, or by another window.
  effect(() => {
    const last = path.value.at(-1);
    if (last?.open) void takeUp(last);
  });
  // A new conversation gets its address once it has a message.
  effect(() => {
    const id = currentId.value;
    if (id !== null && decoded(location.hash.slice(2)) !== id) history.replaceState(null, '', `#/${encodeURIComponent(id)}`);
    document.title = current.value ? `${current.value.title} · Sluice` : 'Sluice';
  });
});
void connect(() => settings.value.model);
focusComposer();
