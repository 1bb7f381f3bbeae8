package redisstore

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // see newScript
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// maxPipeline is how many swaps, or reads of marks, travel together and answer together. The service hands over fewer
// swaps at once.
const maxPipeline = 256

// Swap is swapstore.Store's. In a Cluster each swap goes alone, so that a silent server delays
// no other server's: the client finds its server, and puts what goes there into one pipeline.
func (s *Store) Swap(ctx context.Context, swaps []swapstore.Swap, done func(i int, r swapstore.Result)) {
	size := maxPipeline
	if s.cluster {
		size = 1
	}
	for from := 0; from < len(swaps); from += size {
		var batch []scriptCall // travels together
		for i := from; i < min(from+size, len(swaps)); i++ {
			batch = append(batch, s.encode(&swaps[i]))
		}
		go s.run(ctx, batch, func(i int, r swapstore.Result) { done(from+i, r) })
	}
}

// scriptCall is a script with what it is sent.
type scriptCall struct {
	*luaScript
	rueidis.LuaExec
}

// encode copies a swap: its caller may use the slices again.
func (s *Store) encode(w *swapstore.Swap) scriptCall {
	key, age := s.prefix+base64.RawURLEncoding.EncodeToString(w.Key[:]), ""
	keys := []string{key}
	// The first and the last microsecond at which the swap may change something.
	first, last := decimal(ceilDiv(w.FromNs, micro)), decimal(ceilDiv(w.UntilNs, micro)-1)
	expires := decimal(max(ceilDiv(w.ExpireNs, milli), 1)) // Redis knows none before
	if w.Kind == swapstore.Adding {
		args := []string{strconv.FormatUint(w.Units, 10), first, last, expires}
		return scriptCall{addScript, rueidis.LuaExec{Keys: keys, Args: args}}
	}
	// A swap without an age names no mark: while a slot moves, value and mark may be at two servers.
	if w.AgeNs > 0 {
		age = decimal(ceilDiv(w.AgeNs, micro))
		keys = append(keys, s.mark(s.slot(key)))
	}
	args := []string{string(w.Old), first, last, expires, string(w.New), age}
	return scriptCall{swapScript, rueidis.LuaExec{Keys: keys, Args: args}}
}

const micro, milli = int64(time.Microsecond), int64(time.Millisecond)

// ceilDiv is a / b, rounded up.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// swapScript swaps the value of KEYS[1]:
//
//	ARGV[1]  the nonce that the value must have; empty = there must be none
//	ARGV[2]  the first time at which the script may change something, in microseconds,
//	ARGV[3]  and the last; Lua's numbers hold them exactly until the year 2255
//	ARGV[4]  until when the value is kept, in milliseconds
//	ARGV[5]  the new value; empty = the swap is ReadOnly
//	ARGV[6]  for how long the server must have had its state: see sinceScript; empty = it need not
//
// The answer is a status (see statuses), the time, the value unless swapped, and the age of a state that is too young,
// else 0.
var swapScript = newScript(`local there = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[6] ~= '' then
  ` + sinceScript + `
  if now - since < tonumber(ARGV[6]) then
    return {3, now, there, now - since} -- Young
  end
end
if ARGV[5] == '' or (there and string.sub(there, 1, 8) or '') ~= ARGV[1] then
  return {1, now, there, 0} -- Read
end
if now < tonumber(ARGV[2]) or now > tonumber(ARGV[3]) then
  return {2, now, there, 0} -- Late
end
redis.call('SET', KEYS[1], ARGV[5], 'PX', ` + lifetime + `)
return {0, now, false, 0} -- Swapped`)

// lifetime is how many milliseconds a value is kept from now on. Redis 6.0 takes no time at which it
// ends, and none takes a lifetime of 0.
const lifetime = `math.max(ARGV[4] - math.floor(now / 1000), 1)`

// addScript adds the units ARGV[1] to the number at KEYS[1]. ARGV[2], ARGV[3] and ARGV[4] are as
// for swapScript. The answer is like that of swapScript, with the sum as its last number.
var addScript = newScript(`local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now < tonumber(ARGV[2]) or now > tonumber(ARGV[3]) then
  return {2, now, false, 0} -- Late
end
if ARGV[1] == '0' then
  return {0, now, false, tonumber(redis.call('GET', KEYS[1]) or 0)}
end
local sum = redis.call('INCRBY', KEYS[1], ARGV[1])
if sum == tonumber(ARGV[1]) then -- it is new
  redis.call('PEXPIRE', KEYS[1], ` + lifetime + `)
end
return {0, now, false, sum} -- Swapped`)

// luaScript is a script and the name that Redis gives it. Scripts are sent in three ways:
//
//	swapScript, addScript  in pipelines, by EVALSHA, and by EVAL where the server does not know them: see run
//	liveScript             one by one. The client does the same
//	markScript             by EVAL: it is short, and a server that has lost its state knows no script
type luaScript struct{ text, sha string }

func newScript(text string) *luaScript {
	return &luaScript{text, fmt.Sprintf("%x", sha1.Sum([]byte(text)))} //nolint:gosec // Redis names scripts so
}

// run carries a batch out, and calls done for each swap by the context's deadline: in this goroutine if the servers
// answer in time, else in one of the context. The client gets no deadline: it would give up commands that it has sent,
// and their room.
func (s *Store) run(ctx context.Context, batch []scriptCall, done func(i int, r swapstore.Result)) {
	var once sync.Once
	sayLate := func() {
		once.Do(func() {
			for i := range batch {
				done(i, failed(explain(ctx.Err())))
			}
		})
	}
	if ctx.Err() != nil {
		sayLate()
		return
	}
	endDeadline := context.AfterFunc(ctx, sayLate)
	defer endDeadline()
	results := s.send(batch, s.evalsha)
	if unknown := unknownScript(results); len(unknown) > 0 {
		if ctx.Err() != nil { // nothing is sent any more
			sayLate()
			return
		}
		s.sendAgain(batch, unknown, results)
	}
	once.Do(func() {
		for i, r := range results {
			done(i, readAnswer(r))
		}
	})
}

// send sends a batch in one go, each swap by the command.
func (s *Store) send(batch []scriptCall, command func(scriptCall) rueidis.Completed) []rueidis.RedisResult {
	commands := make([]rueidis.Completed, len(batch))
	for i, w := range batch {
		commands[i] = command(w)
	}
	return s.client.DoMulti(context.Background(), commands...)
}

func (s *Store) evalsha(c scriptCall) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

func (s *Store) eval(c scriptCall) rueidis.Completed {
	return s.client.B().Eval().Script(c.text).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

// sendAgain sends some of a batch with their scripts, and puts their results in place of the first ones.
func (s *Store) sendAgain(batch []scriptCall, which []int, results []rueidis.RedisResult) {
	again := make([]scriptCall, len(which))
	for n, i := range which {
		again[n] = batch[i]
	}
	for n, r := range s.send(again, s.eval) {
		results[which[n]] = r
	}
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

// readAnswer reads a script's answer.
func readAnswer(r rueidis.RedisResult) swapstore.Result {
	parts, err := r.ToArray()
	if err != nil {
		return failed(explain(err))
	}
	if len(parts) != 4 {
		return failed(errAnswer)
	}
	status, errStatus := parts[0].AsInt64()
	now, errNow := parts[1].AsInt64()
	value, errValue := parts[2].AsBytes()
	if rueidis.IsRedisNil(errValue) {
		errValue = nil
	}
	last, errLast := parts[3].AsInt64() // a sum, or an age
	err = cmp.Or(errStatus, errNow, errValue, errLast)
	if err != nil || status < 0 || status >= int64(len(statuses)) {
		return failed(errAnswer)
	}
	read := swapstore.Result{Status: statuses[status], Value: value, NowNs: now * micro}
	if read.Status == swapstore.Swapped {
		read.Sum = uint64(last)
	} else {
		read.AgeNs = last * micro
	}
	return read
}

// statuses are those of the scripts' answers, by the number that they return.
var statuses = [...]swapstore.Status{
	0: swapstore.Swapped, 1: swapstore.Read, 2: swapstore.Late, 3: swapstore.Young,
}

func failed(err error) swapstore.Result {
	return swapstore.Result{Status: swapstore.Failed, Err: err}
}
