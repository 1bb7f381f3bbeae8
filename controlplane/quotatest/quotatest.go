// Package quotatest is the quota service over a store in memory and in virtual time,
// for tests of the filter. Everything is done when a call returns. Only tests may
// import it.
package quotatest

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// Service is a quota service.
type Service struct {
	Ready func(st *Stream) // called when a stream's Next has something; nil = not called

	tb      testing.TB
	service *quotaservice.Service
	store   *store
	now     func() int64
	timers  []timer
}

// store is in memory, and may lose its state.
type store struct {
	*swapstore.Memory
	anew bool // it has lost its state since the last Tend
}

// Tend implements swapstore.Store.
func (s *store) Tend(ctx context.Context) (ageNs int64, anew bool, err error) {
	ageNs, _, err = s.Memory.Tend(ctx)
	anew, s.anew = s.anew, false
	return ageNs, anew, err
}

type timer struct {
	atNs int64
	do   func()
}

// New returns a service with that clock.
func New(tb testing.TB, now func() int64) *Service {
	tb.Helper()
	s := &Service{tb: tb, now: now, store: &store{Memory: swapstore.NewMemory(now).Aged()}}
	s.watch()
	s.Restart()
	return s
}

// Restart puts a new service before the store. The caller closes the streams of the old one.
func (s *Service) Restart() {
	options := quotaservice.Options{Store: s.store, Clock: s, Secret: make([]byte, 32)}
	service, err := quotaservice.NewService(context.Background(), options)
	require.NoError(s.tb, err)
	s.service = service
}

// Forget has the store lose its state. The service sees it within quotaservice.WatchEvery, and
// ends its streams: see Stream.Ending.
func (s *Service) Forget() { s.store.Memory, s.store.anew = swapstore.NewMemory(s.now), true }

// watch has the service watch its store.
func (s *Service) watch() {
	if s.service != nil {
		s.service.Watch()
	}
	s.AfterFunc(int64(quotaservice.WatchEvery), s.watch)
}

// NowNs implements quotaservice.Clock.
func (s *Service) NowNs() int64 { return s.now() }

// AfterFunc implements quotaservice.Clock.
func (s *Service) AfterFunc(ns int64, f func()) { s.timers = append(s.timers, timer{s.now() + ns, f}) }

// Due does what is due by now. Call it when time has passed.
func (s *Service) Due() {
	for {
		i := slices.IndexFunc(s.timers, func(t timer) bool { return t.atNs <= s.now() })
		if i < 0 {
			return
		}
		t := s.timers[i]
		s.timers = slices.Delete(s.timers, i, i+1)
		t.do()
	}
}

// Stream is one worker's stream.
type Stream struct{ *quotaservice.Stream }

// Open opens a stream.
func (s *Service) Open(tb testing.TB) *Stream {
	tb.Helper()
	st := &Stream{}
	stream, err := s.service.Open(quotaservice.Peer{Address: "test"}, func() {
		if s.Ready != nil {
			s.Ready(st)
		}
	})
	require.NoError(tb, err)
	st.Stream = stream
	return st
}

// Next returns the next message of the service, nil if there is none.
func (s *Stream) Next() []byte {
	message, ok := s.Stream.Next()
	if !ok {
		return nil
	}
	s.Sent()
	return message
}
