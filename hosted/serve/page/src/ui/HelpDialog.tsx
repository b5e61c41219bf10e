/** The keys, and whose work this page is. */
import type { VNode } from 'preact';
import { base } from '../server/http';
import { Dialog } from './Dialog';
import { SHORTCUTS } from './keyboard';
import { dialog } from './panels';

/** The dialog. */
export function HelpDialog(): VNode {
  const licences = document.querySelector<HTMLLinkElement>('link[rel=license]')?.getAttribute('href');
  return (
    <Dialog title="Keyboard and about" onClose={() => (dialog.value = null)}>
      <dl class="keys">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p>
        Every answer shows its seed and the fingerprint of the model. “Run again” sends the same request: the text that
        comes is the same, whatever else the server does.
      </p>
      {licences && (
        <p>
          <a href={new URL(licences, base).href} target="_blank" rel="noopener">
            Licences of what this page contains
          </a>
        </p>
      )}
    </Dialog>
  );
}
