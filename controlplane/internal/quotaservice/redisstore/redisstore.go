// Package redisstore keeps the quota service's values in Redis (6.0 or newer) or
// Valkey (7.2 or newer): one server, servers under Sentinel, or a Cluster.
//
// Its invariant: a swap is sent once. It is sent again only if the server has not known the
// script, because then it has swapped nothing. The package must not know what a value means.
//
// A swap goes this way:
//
//	Swap        encode copies it. It travels with others, in a goroutine of theirs
//	run         sends EVALSHA for each, in one pipeline
//	            and EVAL for those that the server has answered with NOSCRIPT
//	readAnswer  makes a result of the answer, and done gets it
//	sayLate     if the deadline comes before that: done gets errNoAnswer, and the answer is dropped
//
// To read it, begin with swap.go:
//
//	swap.go        Swap: the scripts, what they are sent, what they answer
//	age.go         Tend: since when the servers have their state
//	redisstore.go  Open, whether a server is fit to keep values, Live and Secret
//	errors.go      what an error of the client or a server means, and what to do about it
//	client.go      what a URL says, and how the client is started with that
//	replies        a connection that looks at each reply before the client reads it
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// Options say which store to open.
type Options struct {
	// URL is redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE],
	// redis+sentinel://…HOST[:PORT],…/MASTER[/DATABASE] or redis+cluster://…HOST[:PORT],….
	// rediss is with TLS; valkey and valkeys are the same. After ? may follow prefix
	// (what keys begin with), ca, cert, key (files) and server_name for TLS, and
	// sentinel_user and sentinel_password_file where Sentinel's are others.
	URL          string
	PasswordFile string       // instead of a password in the URL
	Log          *slog.Logger // gets a warning if a server cannot be checked; nil = nothing

	Socket   string        // the path of a Unix socket, in place of the host of a redis:// or rediss:// URL
	AnyName  bool          // take a server's certificate whatever name it is for
	Sentinel *url.Userinfo // user and password at Sentinels; nil = as the URL says
}

// Store is a swapstore.Store.
type Store struct {
	client  rueidis.Client
	prefix  string
	cluster bool
	tags    []string // of a Cluster: for each slot, what a mark's name has in braces

	tending sync.Mutex       // one Tend after the other, also while the servers are asked
	seen    [slotCount]int64 // by slot: its mark, as the last Tend has it
}

var _ swapstore.Store = (*Store)(nil)

// Open connects, and refuses servers that are too old or would forget values.
func Open(ctx context.Context, o Options) (*Store, error) {
	a, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if err := a.readPassword(o.PasswordFile); err != nil {
		return nil, err
	}
	option, err := a.option()
	if err != nil {
		return nil, err
	}
	o.apply(&option)
	client, err := connect(ctx, option)
	if err != nil {
		return nil, fmt.Errorf("open the quota store: %w", explain(err))
	}
	s := &Store{client: client, prefix: a.prefix(), cluster: a.form == cluster}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := s.checkServers(ctx, a.form, log); err != nil {
		return nil, errors.Join(fmt.Errorf("open the quota store: %w", err), s.Close())
	}
	if s.cluster {
		s.tags = s.slotTags()
	}
	return s, nil
}

// Close ends the connections; swaps under way fail.
func (s *Store) Close() error {
	s.client.Close()
	return nil
}

// The oldest servers that are supported.
var (
	oldestRedis  = [2]int{6, 0}
	oldestValkey = [2]int{7, 2}
	// oldestStrict is the first Redis that heeds min-replicas-to-write in scripts, too.
	oldestStrict = [2]int{6, 2}
)

// checkServers refuses servers that cannot keep the promise: too old, or set to drop
// values when their memory is full. It logs a warning for a server that does not say.
func (s *Store) checkServers(ctx context.Context, want form, log *slog.Logger) error {
	for address, node := range s.client.Nodes() {
		about, err := info(ctx, node)
		if refused := (*rueidis.RedisError)(nil); errors.As(err, &refused) {
			log.Warn("cannot check a server of the quota store: allow INFO, "+
				"or make sure that its version is supported and its maxmemory-policy is noeviction",
				"server", address, "error", explain(err))
			continue
		}
		if err != nil && want == cluster {
			log.Warn("a server of the quota store's Cluster does not answer", "server", address, "error", explain(err))
			continue
		}
		if err != nil {
			return explain(err)
		}
		if err := about.fit(want); err != nil {
			return fmt.Errorf("%s %w", address, err)
		}
		if about["maxmemory_policy"] == "" {
			log.Warn("a server of the quota store does not say its maxmemory-policy: it must be noeviction", "server", address)
		}
	}
	return nil
}

// about is what a server's INFO says.
type about map[string]string

func info(ctx context.Context, node rueidis.Client) (about, error) {
	text, err := node.Do(ctx, node.B().Info().Build()).ToString()
	if err != nil {
		return nil, err
	}
	found := about{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found, nil
}

// fit returns what is wrong with the server for a store of that form.
func (a about) fit(want form) error {
	server := "Redis " + a["redis_version"]
	isOld := isOlder(a["redis_version"], oldestRedis)
	if version := a["valkey_version"]; version != "" {
		server = "Valkey " + version
		isOld = isOlder(version, oldestValkey)
	}
	if isOld {
		return fmt.Errorf("is %s: the quota store takes Redis 6.0, Valkey 7.2 or newer", server)
	}
	if a["min_slaves_good_slaves"] != "" && isOlder(a["redis_version"], oldestStrict) {
		return fmt.Errorf("is %s, which heeds min-replicas-to-write in no script: take Redis 6.2 or newer, or set it to 0",
			server)
	}
	policy := a["maxmemory_policy"]
	if limit := a["maxmemory"]; policy != "" && policy != "noeviction" && limit != "0" {
		return fmt.Errorf("drops values when its memory is full, which would lift limits: "+
			"set maxmemory-policy to noeviction (it is %s), or maxmemory to 0", policy)
	}
	switch mode := cmp.Or(a["redis_mode"], a["server_mode"]); { // Redis has the first, and Valkey one of them
	case mode == "cluster" && want != cluster:
		return errors.New("is a node of a Cluster: use redis+cluster://")
	case mode == "sentinel":
		return errors.New("is a Sentinel: use redis+sentinel://HOST:PORT,…/MASTER")
	case mode == "standalone" && want == cluster:
		return errors.New("is no node of a Cluster: use redis://")
	}
	return nil
}

// isOlder reports whether a version such as 7.2.4 is older; one that cannot be read is not.
func isOlder(version string, than [2]int) bool {
	var is [2]int
	n, _ := fmt.Sscanf(version, "%d.%d", &is[0], &is[1])
	return n == 2 && slices.Compare(is[:], than[:]) < 0
}

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
//	Swap          sayLate of run                    no deadline
//	Tend          within                            no deadline: it goes on with what it has sent
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
