/** Small things that stay in this browser (`localStorage`), where it lets the page store any. */

/** A stored text; null if there is none, or the browser does not let the page read it. */
export function readLocal(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Stores a text, or removes it. Where that is not allowed, it holds for this window alone. */
export function writeLocal(name: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // The page works without.
  }
}
