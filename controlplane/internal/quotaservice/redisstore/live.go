package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// liveScript notes ARGV[1] in the sorted set KEYS[1] by time, drops what is older
// than ARGV[2] milliseconds, or newer than now because the clock was set back, and counts.
var liveScript = rueidis.NewLuaScript(`local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])`)

// Live is swapstore.Store's.
func (s *Store) Live(ctx context.Context, domain string, process uint64) (int, error) {
	args := []string{strconv.FormatUint(process, 36), strconv.FormatInt(swapstore.LiveFor.Milliseconds(), 10)}
	n, err := within(ctx, func() (int64, error) {
		return liveScript.Exec(ctx, s.client, []string{s.prefix + "live:" + domain}, args).AsInt64()
	})
	if err != nil {
		return 0, fmt.Errorf("note a live process: %w", explain(err))
	}
	return int(n), nil
}

// Secret is swapstore.Store's.
func (s *Store) Secret(ctx context.Context, name string, fresh func() []byte) ([]byte, error) {
	key := s.prefix + "secret:" + name
	do := func(command rueidis.Completed) ([]byte, error) {
		return within(ctx, func() ([]byte, error) { return s.client.Do(ctx, command).AsBytes() })
	}
	get := func() ([]byte, error) { return do(s.client.B().Get().Key(key).Build()) }
	secret, err := get()
	if rueidis.IsRedisNil(err) {
		// If another service was faster, its secret stays.
		_, err = do(s.client.B().Set().Key(key).Value(rueidis.BinaryString(fresh())).Nx().Build())
		if err == nil || rueidis.IsRedisNil(err) {
			secret, err = get()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read a secret: %w", explain(err))
	}
	return secret, nil
}

// within returns by the context's deadline, whatever the client does. The client keeps to a deadline only while it is
// connected, and then gives up commands that it has sent, with their room in a pipeline. So:
//
//	call          returns by a deadline because of  the client gets
//	Swap          sayFailed, see run                no deadline
//	Age           within                            no deadline: it goes on with what it has sent
//	Live, Secret  within                            the deadline: one command is given up
//	Open          connect, then the client          the context: it has connected before checkServers
func within[T any](ctx context.Context, do func() (T, error)) (value T, err error) {
	type result struct {
		value T
		err   error
	}
	c := make(chan result, 1)
	go func() {
		value, err := do()
		c <- result{value, err}
	}()
	select {
	case r := <-c:
		return r.value, r.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}
