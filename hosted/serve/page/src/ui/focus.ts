/** Where the keyboard's focus is, and where it moves when what had it is gone. */
import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { focusComposer } from './panels';

/** Focuses an element when it is first drawn, and only then: later it would take the focus from where a person types. */
export function useFocus<T extends HTMLElement>(): RefObject<T> {
  const element = useRef<T>(null) as RefObject<T>;
  useLayoutEffect(() => {
    element.current?.focus();
    if (element.current instanceof HTMLInputElement) element.current.select();
  }, []);
  return element;
}

/** Keeps the focus in a list of messages whose buttons and fields come and go. */
export function useKeptFocus(box: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    const list = box.current;
    if (!list) return undefined;
    let last: { element: Element; id: string | undefined; at: number } | null = null;
    const articles = (): HTMLElement[] => [...list.querySelectorAll('article')];
    const remember = ({ target }: FocusEvent): void => {
      const element = target as Element;
      const article = element.closest<HTMLElement>('article');
      last = article && { element, id: article.dataset['id'], at: articles().indexOf(article) };
    };
    const forget = ({ relatedTarget }: FocusEvent): void => {
      if (relatedTarget instanceof Node && !list.contains(relatedTarget)) last = null;
    };
    const watcher = new MutationObserver(() => {
      if (!last || last.element.isConnected) return;
      const { element, id, at } = last;
      last = null;
      if (document.activeElement !== document.body) return;
      const all = articles();
      const article = all.find((one) => one.dataset['id'] === id) ?? all[at];
      // The same button of the message that took its place, or the one that opened the editor that is gone.
      const wanted = [element.getAttribute('aria-label'), 'Edit'];
      const buttons = [...(article?.querySelectorAll<HTMLButtonElement>('button:not(:disabled)') ?? [])];
      const button = wanted.map((label) => buttons.find((one) => one.getAttribute('aria-label') === label)).find(Boolean);
      if (button) button.focus({ preventScroll: true });
      else focusComposer();
      if (document.activeElement === document.body) list.focus({ preventScroll: true });
    });
    list.addEventListener('focusin', remember);
    list.addEventListener('focusout', forget);
    watcher.observe(list, { childList: true, subtree: true });
    return () => {
      watcher.disconnect();
      list.removeEventListener('focusin', remember);
      list.removeEventListener('focusout', forget);
    };
  }, []);
}
