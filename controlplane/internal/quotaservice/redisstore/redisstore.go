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
//	sayFailed   if the deadline comes before that: done gets errLate, and the answer is dropped
//
// To read it, begin with swap.go:
//
//	swap.go        Swap: the scripts, what they are sent, what they answer
//	mark.go        Age: since when the servers have their state
//	live.go        Live and Secret, and how single commands end by their deadline
//	redisstore.go  Options and Open
//	address.go     what a URL says
//	client.go      how the client is started, and connects
//	check.go       whether a server is fit to keep values
//	errors.go      what an error of the client or a server means
//	replies        a connection that looks at each reply before the client reads it
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
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

	mu   sync.Mutex
	seen [slots]int64 // by slot: its mark when Age read it last
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
