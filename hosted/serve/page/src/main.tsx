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
  const id = /^#\/(.+)$/.exec(location.hash)?.[1] ?? null;
  await show(id !== null && chats.value.some((chat) => chat.id === id) ? id : null);
  const last = path.value.at(-1);
  if (last) void takeUp(last);
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
  // A new conversation gets its address once it has a message.
  effect(() => {
    const id = currentId.value;
    if (id !== null && location.hash !== `#/${id}`) history.replaceState(null, '', `#/${id}`);
    document.title = current.value ? `${current.value.title} · Sluice` : 'Sluice';
  });
});
void connect(() => settings.value.model);
focusComposer();
