/** The messages of a conversation, kept at their end while an answer is written. */
import { useComputed } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { currentId, path } from '../data/chats';
import { memo } from './memo';
import { IconButton } from './icons';
import { MessageView } from './MessageView';
import { Welcome } from './Welcome';
import type { Message } from '../types';

/** A message is drawn again only if it changes; its footer follows signals by itself. */
const Item = memo(
  ({ message }: { message: Message; isLast: boolean }) => <MessageView message={message} />,
  (a, b) => a.message === b.message && a.isLast === b.isLast,
);

/** The conversation that is shown. */
export function Conversation(): VNode {
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const isEmpty = useComputed(() => path.value.length === 0);

  const toEnd = (): void => {
    const box = scroller.current;
    if (box) box.scrollTop = box.scrollHeight;
  };
  useLayoutEffect(() => {
    if (follows.current) toEnd();
  }, [path.value]);
  useEffect(() => {
    follows.current = true;
    toEnd();
  }, [currentId.value]);

  const onScroll = (): void => {
    const box = scroller.current;
    if (!box) return;
    const rest = box.scrollHeight - box.scrollTop - box.clientHeight;
    follows.current = rest < NEAR_PX;
    setAway(rest > AWAY_PX);
  };
  return (
    <div class="scroller" ref={scroller} onScroll={onScroll} tabIndex={-1}>
      {isEmpty.value ? (
        <Welcome />
      ) : (
        <div class="column">
          {path.value.map((message, i) => (
            <Item key={message.id} message={message} isLast={i === path.value.length - 1} />
          ))}
        </div>
      )}
      {isAway && <IconButton icon="down" label="To the end" class="to-end" onClick={toEnd} />}
    </div>
  );
}

const NEAR_PX = 40;
const AWAY_PX = 400;
