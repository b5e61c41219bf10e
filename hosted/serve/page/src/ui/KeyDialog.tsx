/** Asks for the key of a server that wants one. */
import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { settings } from '../data/chats';
import { keyWanted, setKey } from '../server/http';
import { connect } from '../server/models';
import { Dialog } from './Dialog';
import { useFocus } from './focus';

/** The dialog. */
export function KeyDialog(): VNode {
  const [typed, setTyped] = useState('');
  const field = useFocus<HTMLInputElement>();
  const isWrong = keyWanted.value === 'wrong';
  return (
    <Dialog title="This server wants a key" onClose={() => (keyWanted.value = 'no')}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(typed.trim());
          void connect(() => settings.value.model);
        }}
      >
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            name="key"
            autocomplete="current-password"
            required
            value={typed}
            ref={field}
            aria-invalid={isWrong}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        </label>
        {isWrong && (
          <p class="problem" role="alert">
            The server does not know this browser’s key.
          </p>
        )}
        <p class="hint">It stays in this browser, and is sent to this server alone.</p>
        <div class="row">
          <button type="submit" class="primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
