package redisstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
)

// swapScript swaps KEYS[1] to ARGV[5] until the millisecond ARGV[4], if its nonce
// is ARGV[1] and the time is from ARGV[2] to ARGV[3]; without ARGV[5] it reads. With
// ARGV[6] nothing may have been there since that time: the mark KEYS[2] says since when the
// server has its state, by a clock that was not set back since.
// Times are microseconds, which Lua's numbers hold exactly until the year 2255. The
// answer is an outcome, the time and, unless swapped, the value and the mark.
const swapScript = `local there = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local since = ''
if ARGV[6] ~= '' and not there then
  since = redis.call('GET', KEYS[2])
  if not since or tonumber(since) > now then
    since = string.format('%.0f', now)
    redis.call('SET', KEYS[2], since)
  end
  if since ~= ARGV[6] then
    return {1, now, there, since}
  end
end
if ARGV[5] == '' or (there and string.sub(there, 1, 8) or '') ~= ARGV[1] then
  return {1, now, there, since}
end
if now < tonumber(ARGV[2]) or now > tonumber(ARGV[3]) then
  return {2, now, there}
end
redis.call('SET', KEYS[1], ARGV[5], 'PXAT', ARGV[4])
return {0, now}`

var swapSHA = sha(swapScript)

// outcomes are those of the script's answers.
var outcomes = [...]quota.Outcome{quota.Swapped, quota.Differs, quota.Late}

const (
	// maxBatch is how many swaps travel together and answer together.
	maxBatch = 256
	// maxUnderWay is how many batches may wait for one server. The client's ring
	// has room for more, so that it never blocks.
	maxUnderWay = 1 << (ringScale - 1)
	ringScale   = 10
)

// arguments are one swap as the script's key and arguments.
type arguments struct {
	index int
	keys  []string
	args  []string
}

// encode copies a swap: its caller may use the slices again.
func (s *Store) encode(i int, w *quota.Swap) arguments {
	first, last := between(w)
	key, since := s.key(w.Key), ""
	if w.Fresh {
		since = decimal(w.SinceNs / int64(time.Microsecond))
	}
	return arguments{index: i, keys: []string{key, s.mark(key)}, args: []string{
		string(w.Old), decimal(first), decimal(last), decimal(expiry(w)), string(w.New), since,
	}}
}

func (s *Store) key(key [16]byte) string {
	return s.prefix + base64.RawURLEncoding.EncodeToString(key[:])
}

// Swap is quota.Store's. Batches to one server go in one pipeline; each answers
// alone, so that a silent server of a Cluster holds up no other.
func (s *Store) Swap(ctx context.Context, swaps []quota.Swap, done func(i int, r quota.Result)) {
	open := map[*lane]*batch{}
	for i := range swaps {
		a := s.encode(i, &swaps[i])
		command := s.evalsha(&a)
		l := s.lanes.of(command.Slot())
		b := open[l]
		if b == nil {
			b = &batch{store: s, lane: l, done: done}
			open[l] = b
		}
		b.swaps = append(b.swaps, a)
		b.commands = append(b.commands, command)
		if len(b.swaps) == maxBatch {
			go b.run(ctx)
			delete(open, l)
		}
	}
	for _, b := range open {
		go b.run(ctx)
	}
	if s.cluster {
		s.lanes.refresh(ctx, s.client)
	}
}

func (s *Store) evalsha(a *arguments) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(swapSHA).Numkeys(2).Key(a.keys...).Arg(a.args...).Build()
}

func (s *Store) eval(a *arguments) rueidis.Completed {
	return s.client.B().Eval().Script(swapScript).Numkeys(2).Key(a.keys...).Arg(a.args...).Build()
}

// batch is swaps that travel together.
type batch struct {
	store    *Store
	lane     *lane
	swaps    []arguments
	commands []rueidis.Completed
	done     func(i int, r quota.Result)
	settled  atomic.Bool
}

// run carries the batch out and settles it by the context's deadline. The client
// gets no deadline: it would give up commands that it has sent, and their room.
func (b *batch) run(ctx context.Context) {
	select {
	case b.lane.room <- struct{}{}:
		defer func() { <-b.lane.room }()
	case <-ctx.Done():
		b.fail(errBusy)
		return
	}
	if err := ctx.Err(); err != nil {
		b.fail(explain(err))
		return
	}
	stop := context.AfterFunc(ctx, func() { b.fail(explain(ctx.Err())) })
	results := b.store.client.DoMulti(context.Background(), b.commands...)
	b.loadScript(results)
	stop()
	if b.settled.CompareAndSwap(false, true) {
		for i := range b.swaps {
			b.done(b.swaps[i].index, result(results[i]))
		}
	}
}

// loadScript sends the swaps again whose server did not know the script.
func (b *batch) loadScript(results []rueidis.RedisResult) {
	var again []rueidis.Completed
	var which []int
	for i := range results {
		if refused, ok := rueidis.IsRedisErr(results[i].Error()); ok && refused.IsNoScript() {
			again = append(again, b.store.eval(&b.swaps[i]))
			which = append(which, i)
		}
	}
	if len(again) == 0 || b.settled.Load() {
		return
	}
	for i, r := range b.store.client.DoMulti(context.Background(), again...) {
		results[which[i]] = r
	}
}

func (b *batch) fail(err error) {
	if b.settled.CompareAndSwap(false, true) {
		for i := range b.swaps {
			b.done(b.swaps[i].index, quota.Result{Outcome: quota.Failed, Err: err})
		}
	}
}

// result reads the script's answer.
func result(r rueidis.RedisResult) quota.Result {
	parts, err := r.ToArray()
	if err != nil {
		return quota.Result{Outcome: quota.Failed, Err: explain(err)}
	}
	read, err := answer(parts)
	if err != nil {
		return quota.Result{Outcome: quota.Failed, Err: fmt.Errorf("read the quota store's answer: %w", err)}
	}
	return read
}

var errAnswer = errors.New("it is not the script's")

func answer(parts []rueidis.RedisMessage) (quota.Result, error) {
	if len(parts) < 2 {
		return quota.Result{}, errAnswer
	}
	code, err := parts[0].AsInt64()
	if err != nil || code < 0 || code >= int64(len(outcomes)) {
		return quota.Result{}, errAnswer
	}
	micros, err := parts[1].AsInt64()
	if err != nil {
		return quota.Result{}, errAnswer
	}
	r := quota.Result{Outcome: outcomes[code], NowNs: micros * int64(time.Microsecond)}
	if r.Outcome == quota.Swapped || len(parts) < 3 {
		return r, nil
	}
	if parts[2].IsNil() {
		return since(r, parts[3:])
	}
	if r.Value, err = parts[2].AsBytes(); err != nil {
		return quota.Result{}, errAnswer
	}
	return r, nil
}

// since reads since when the server has its state, where the script says it.
func since(r quota.Result, parts []rueidis.RedisMessage) (quota.Result, error) {
	if len(parts) == 0 {
		return r, nil
	}
	text, err := parts[0].ToString()
	if err != nil || text == "" {
		return r, nil //nolint:nilerr // a script that says nothing of it
	}
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return quota.Result{}, errAnswer
	}
	r.SinceNs = micros * int64(time.Microsecond)
	return r, nil
}
