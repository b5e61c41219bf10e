/** The page. */
import type { VNode } from 'preact';
import { isStored } from '../data/chats';
import { preferences } from '../data/preferences';
import { keyWanted } from '../server/http';
import { Composer } from './Composer';
import { Conversation } from './Conversation';
import { Header } from './Header';
import { HelpDialog } from './HelpDialog';
import { KeyDialog } from './KeyDialog';
import { Notices } from './notices';
import { dialog, isListOpen } from './panels';
import { SettingsPanel } from './SettingsPanel';
import { Sidebar } from './Sidebar';

/** All of it. */
export function App(): VNode {
  return (
    <div class={`app ${preferences.value.sidebar ? 'with-list' : ''}`}>
      <Sidebar />
      {isListOpen.value && <div class="shade" onClick={() => (isListOpen.value = false)} />}
      <div class="page">
        <Header />
        {!isStored.value && (
          <p class="warning" role="status">
            This browser does not let the page store conversations: they end with this window.
          </p>
        )}
        <main>
          <Conversation />
          <Composer />
        </main>
      </div>
      {dialog.value === 'settings' && <SettingsPanel />}
      {dialog.value === 'help' && <HelpDialog />}
      {keyWanted.value !== 'no' && <KeyDialog />}
      <Notices />
    </div>
  );
}
