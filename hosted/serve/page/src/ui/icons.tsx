/** Icons, drawn as lines of one weight. */
import type { VNode } from 'preact';

const PATHS = {
  add: 'M12 5v14M5 12h14',
  attach: 'M20 11.5l-8.2 8.2a5 5 0 0 1-7-7l8.5-8.6a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4l7.8-7.8',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  close: 'M6 6l12 12M18 6L6 18',
  copy: 'M9 9h10v10H9zM5 15V5h10',
  delete: 'M4 7h16M9 7V4h6v3M6.5 7l1 13h9l1-13',
  down: 'M12 5v14M6 13l6 6 6-6',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  file: 'M7 3h7l4 4v14H7zM14 3v4h4',
  forward: 'M5 5l7 7-7 7M13 5l7 7-7 7',
  help: 'M9 9a3 3 0 1 1 4.2 2.7c-.8.4-1.2 1-1.2 2v.3M12 17.5v.1',
  left: 'M15 5l-7 7 7 7',
  list: 'M4 6h16M4 12h16M4 18h16',
  moon: 'M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z',
  regenerate: 'M20 11a8 8 0 0 0-14.5-4L4 9M4 4v5h5M4 13a8 8 0 0 0 14.5 4L20 15M20 20v-5h-5',
  right: 'M9 5l7 7-7 7',
  send: 'M12 20V5M5.5 11.5L12 5l6.5 6.5',
  settings: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5',
  stop: 'M7 7h10v10H7z',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4',
  tool: 'M14.5 6a4.5 4.5 0 0 0-5.8 5.8L4 16.5V20h3.5l4.7-4.7A4.5 4.5 0 0 0 18 9.5l-2.7 2.7-3.5-3.5z',
} as const;

/** The name of an icon. */
export type IconName = keyof typeof PATHS;

/** An icon. What it stands for is said by what it is in. */
export function Icon({ name }: { name: IconName }): VNode {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  class?: string;
  pressed?: boolean;
}

/** A button that has only an icon. */
export function IconButton({ icon, label, onClick, disabled, class: extra, pressed }: IconButtonProps): VNode {
  return (
    <button
      type="button"
      class={`icon-button ${extra ?? ''}`}
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
