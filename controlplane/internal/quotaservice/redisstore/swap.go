package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // see swapSHA
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
)

// swapScript swaps the value of KEYS[1], or adds to it:
//
//	ARGV[1]  the nonce that the value must have; empty = there must be none
//	ARGV[2]  the first time at which the script may change something, in microseconds,
//	ARGV[3]  and the last; Lua's numbers hold them exactly until the year 2255
//	ARGV[4]  until when the value is kept, in milliseconds
//	ARGV[5]  the new value; empty = only read
//	ARGV[6]  for how long the server must have had its state: see sinceScript; empty = it need not
//	ARGV[7]  the units to add to a number, in place of [1] and [5]; empty = it is a swap
//
// The answer is an outcome (see outcomes), the time, the value unless swapped, and one number more:
// the age of a state that is too young, the sum of what was added, or 0.
const swapScript = `local there = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[6] ~= '' then
  ` + sinceScript + `
  if now - since < tonumber(ARGV[6]) then
    return {3, now, there, now - since} -- Young
  end
end
if ARGV[7] == '' and (ARGV[5] == '' or (there and string.sub(there, 1, 8) or '') ~= ARGV[1]) then
  return {1, now, there, 0} -- Differs
end
if now < tonumber(ARGV[2]) or now > tonumber(ARGV[3]) then
  return {2, now, there, 0} -- Late
end
if ARGV[7] ~= '' then
  local sum = tonumber(there or ARGV[7])
  if not there and ARGV[7] ~= '0' then
    redis.call('SET', KEYS[1], ARGV[7], 'PXAT', ARGV[4])
  elseif there and ARGV[7] ~= '0' then
    sum = redis.call('INCRBY', KEYS[1], ARGV[7])
  end
  return {0, now, false, sum} -- Swapped
end
redis.call('SET', KEYS[1], ARGV[5], 'PXAT', ARGV[4])
return {0, now, false, 0} -- Swapped`

var swapSHA = fmt.Sprintf("%x", sha1.Sum([]byte(swapScript))) //nolint:gosec // Redis names scripts so

// outcomes are those of the script's answers, by the number that it returns.
var outcomes = [...]quotaservice.Outcome{
	0: quotaservice.Swapped, 1: quotaservice.Differs, 2: quotaservice.Late, 3: quotaservice.Young,
}

// maxBatch is how many swaps travel together and answer together.
const maxBatch = 256

// Swap is quotaservice.Store's. In a Cluster each swap goes alone, so that a silent server delays
// no other server's: the client finds its server, and puts what goes there into one pipeline.
func (s *Store) Swap(ctx context.Context, swaps []quotaservice.Swap, done func(i int, r quotaservice.Result)) {
	most := maxBatch
	if s.cluster {
		most = 1
	}
	for from := 0; from < len(swaps); from += most {
		var b batch
		for i := from; i < min(from+most, len(swaps)); i++ {
			b = append(b, s.encode(&swaps[i]))
		}
		go s.run(ctx, b, func(i int, r quotaservice.Result) { done(from+i, r) })
	}
}

// batch is swaps that travel together, each as the script's keys and arguments.
type batch []rueidis.LuaExec

// encode copies a swap: its caller may use the slices again.
func (s *Store) encode(w *quotaservice.Swap) rueidis.LuaExec {
	const micro, milli = int64(time.Microsecond), int64(time.Millisecond)
	key, age := s.prefix+base64.RawURLEncoding.EncodeToString(w.Key[:]), ""
	keys := []string{key}
	// A swap without an age names no mark: while a slot moves, value and mark may be at two servers.
	if w.AgeNs > 0 {
		age = decimal(ceilDiv(w.AgeNs, micro))
		keys = append(keys, s.mark(s.slot(key)))
	}
	units := ""
	if w.Adds {
		units = strconv.FormatUint(w.Units, 10)
	}
	first := ceilDiv(w.AtNs-w.SlackNs, micro)
	last := (w.AtNs + min(w.SlackNs, math.MaxInt64-w.AtNs)) / micro
	return rueidis.LuaExec{Keys: keys, Args: []string{
		string(w.Old), decimal(first), decimal(min(last, ceilDiv(w.UntilNs, micro)-1)),
		decimal(max(ceilDiv(w.ExpireNs, milli), 1)), // Redis knows none before
		string(w.New), age, units,
	}}
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// run carries a batch out, and says its results by the context's deadline. The client gets no
// deadline: it would give up commands that it has sent, and their room.
func (s *Store) run(ctx context.Context, b batch, done func(i int, r quotaservice.Result)) {
	var isSaid atomic.Bool
	say := func(result func(i int) quotaservice.Result) {
		if isSaid.CompareAndSwap(false, true) {
			for i := range b {
				done(i, result(i))
			}
		}
	}
	late := func() { say(func(int) quotaservice.Result { return failed(explain(ctx.Err())) }) }
	if ctx.Err() != nil {
		late()
		return
	}
	defer context.AfterFunc(ctx, late)()
	results := s.send(b, s.evalsha)
	if unknown := unknownScript(results); len(unknown) > 0 && !isSaid.Load() {
		again := make(batch, len(unknown))
		for n, i := range unknown {
			again[n] = b[i]
		}
		for n, r := range s.send(again, s.eval) {
			results[unknown[n]] = r
		}
	}
	say(func(i int) quotaservice.Result { return result(results[i]) })
}

// send sends a batch in one go, each swap by the command.
func (s *Store) send(b batch, command func(rueidis.LuaExec) rueidis.Completed) []rueidis.RedisResult {
	commands := make([]rueidis.Completed, len(b))
	for i, w := range b {
		commands[i] = command(w)
	}
	return s.client.DoMulti(context.Background(), commands...)
}

func (s *Store) evalsha(w rueidis.LuaExec) rueidis.Completed {
	script := s.client.B().Evalsha().Sha1(swapSHA).Numkeys(int64(len(w.Keys)))
	return script.Key(w.Keys...).Arg(w.Args...).Build()
}

func (s *Store) eval(w rueidis.LuaExec) rueidis.Completed {
	script := s.client.B().Eval().Script(swapScript).Numkeys(int64(len(w.Keys)))
	return script.Key(w.Keys...).Arg(w.Args...).Build()
}

// unknownScript are the results of servers that do not know the script, and so have swapped
// nothing.
func unknownScript(results []rueidis.RedisResult) (unknown []int) {
	for i, r := range results {
		if refused, ok := rueidis.IsRedisErr(r.Error()); ok && refused.IsNoScript() {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

func failed(err error) quotaservice.Result {
	return quotaservice.Result{Outcome: quotaservice.Failed, Err: err}
}

var errAnswer = errors.New("read the quota store's answer: it is not the script's")

// result reads the script's answer.
func result(r rueidis.RedisResult) quotaservice.Result {
	parts, err := r.ToArray()
	if err != nil {
		return failed(explain(err))
	}
	if len(parts) != 4 {
		return failed(errAnswer)
	}
	var n [4]int64
	for _, i := range []int{0, 1, 3} {
		n[i], err = parts[i].AsInt64()
		if err != nil {
			return failed(errAnswer)
		}
	}
	value, err := parts[2].AsBytes()
	if err != nil && !rueidis.IsRedisNil(err) || n[0] < 0 || n[0] >= int64(len(outcomes)) {
		return failed(errAnswer)
	}
	const micro = int64(time.Microsecond)
	read := quotaservice.Result{Outcome: outcomes[n[0]], Value: value, NowNs: n[1] * micro}
	if read.Outcome == quotaservice.Swapped {
		read.Sum = uint64(n[3])
	} else {
		read.AgeNs = n[3] * micro
	}
	return read
}
