/** The messages of a conversation, kept at their end while an answer is written. */
import { useComputed } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { proofs } from '../chat/proof';
import { activityOf } from '../chat/writing';
import { currentId, messages, path } from '../data/chats';
import { siblings } from '../data/tree';
import { useKeptFocus } from './focus';
import { memo } from './memo';
import { IconButton } from './icons';
import { MessageView, type Place } from './MessageView';
import { Welcome } from './Welcome';

/** While an answer is written, the other messages are not drawn again. */
const Item = memo(
  (place: Place) => <MessageView {...place} />,
  (a, b) =>
    a.message === b.message && a.isLast === b.isLast && a.at === b.at && a.count === b.count && a.activity === b.activity,
);

/** The messages that are shown, and where each stands. */
function places(): Place[] {
  const counts = new Map<string | null, string[]>();
  for (const message of messages.value.values()) {
    const all = counts.get(message.parent);
    if (all) all.push(message.id);
    else counts.set(message.parent, [message.id]);
  }
  return path.value.map((message, i, all) => {
    const count = counts.get(message.parent)?.length ?? 1;
    const at = count > 1 ? siblings(messages.value, message).findIndex((other) => other.id === message.id) : 0;
    return { message, isLast: i === all.length - 1, at, count, activity: activityOf(message) };
  });
}

/** The conversation that is shown. */
export function Conversation(): VNode {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  useKeptFocus(scroller);
  const isEmpty = useComputed(() => path.value.length === 0);

  const toEnd = (): void => {
    const box = scroller.current;
    if (box) box.scrollTop = box.scrollHeight;
  };
  const measure = (): number => {
    const box = scroller.current;
    const rest = box ? box.scrollHeight - box.scrollTop - box.clientHeight : 0;
    setAway(rest > AWAY_PX);
    return rest;
  };
  useLayoutEffect(() => {
    if (follows.current) toEnd();
    measure();
  }, [path.value]);
  useEffect(() => {
    // The line below an answer has become longer by the next frame.
    const frame = requestAnimationFrame(() => {
      if (follows.current) toEnd();
    });
    return () => cancelAnimationFrame(frame);
  }, [proofs.value]);
  useEffect(() => {
    follows.current = true;
    toEnd();
  }, [currentId.value]);

  const onScroll = (): void => {
    follows.current = measure() < NEAR_PX;
  };
  return (
    <div class="scroller" ref={scroller} onScroll={onScroll} tabIndex={-1}>
      {isEmpty.value ? (
        <Welcome />
      ) : (
        <div class="column">
          {places().map((place) => (
            <Item key={place.message.id} {...place} />
          ))}
        </div>
      )}
      {isAway && <IconButton icon="down" label="To the end" class="to-end" onClick={toEnd} />}
    </div>
  );
}

const NEAR_PX = 40;
const AWAY_PX = 400;
