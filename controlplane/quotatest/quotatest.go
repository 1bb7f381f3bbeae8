// Package quotatest is the quota service over a store in memory and in virtual time,
// for tests of the filter. Everything is done when a call returns. Only tests may
// import it.
package quotatest

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
)

// Service is a quota service.
type Service struct {
	service *quota.Service
	now     func() int64
	timers  []timer
}

type timer struct {
	atNs int64
	do   func()
}

// New returns a service with that clock.
func New(tb testing.TB, now func() int64) *Service {
	tb.Helper()
	s := &Service{now: now}
	service, err := quota.NewService(context.Background(), quota.Options{Store: quota.NewMemory(now).Aged(), Clock: s, Secret: make([]byte, 32)})
	require.NoError(tb, err)
	s.service = service
	return s
}

// NowNs implements quota.Clock.
func (s *Service) NowNs() int64 { return s.now() }

// AfterFunc implements quota.Clock.
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
type Stream struct{ stream *quota.Stream }

// Open opens a stream.
func (s *Service) Open(tb testing.TB) *Stream {
	tb.Helper()
	st, err := s.service.Open(quota.Peer{Address: "test"}, func() {})
	require.NoError(tb, err)
	return &Stream{st}
}

// Receive takes a message.
func (s *Stream) Receive(message []byte) error { return s.stream.Receive(message) }

// Next returns the next message of the service, nil if there is none.
func (s *Stream) Next() []byte {
	message, ok := s.stream.Next()
	if !ok {
		return nil
	}
	return message
}

// Close ends the stream.
func (s *Stream) Close() { s.stream.Close() }
