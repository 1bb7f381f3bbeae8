package redisstore_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestServicesKeepTheirSecret: a service that starts after the store has lost its state
// counts with those that ran before.
func TestServicesKeepTheirSecret(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, binary servertest.Binary) {
		server := servertest.StartRedis(t, binary)
		start := func(settle time.Duration, log io.Writer) *quotaservice.Service {
			s, err := quotaservice.NewService(t.Context(), quotaservice.Options{
				Store: open(t, "redis://"+server.Addr()), SecretWait: settle, Log: slog.New(slog.NewTextHandler(log, nil)),
			})
			require.NoError(t, err)
			return s
		}
		old := start(0, io.Discard)
		server.Do("FLUSHALL")
		fresh := start(time.Millisecond, onLine(old.Heartbeat)) // it says that it waits
		d := quota.Definition{
			ID: 1, Lease: quota.LeaseOff,
			Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 20, PeriodNs: 24 * int64(time.Hour)}},
		}
		a, b := newAsker(t, old, d), newAsker(t, fresh, d)
		for range 10 {
			require.Equal(t, quota.Granted, a.ask(t, [16]byte{})[0].Outcome)
			require.Equal(t, quota.Granted, b.ask(t, [16]byte{})[0].Outcome)
		}
		require.Equal(t, quota.Denied, a.ask(t, [16]byte{})[0].Outcome)
	})
}

// onLine calls something before a line is written.
type onLine func()

func (f onLine) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

// TestARefusalIsLogged: with its advice, and not for each ask.
func TestARefusalIsLogged(t *testing.T) {
	t.Parallel()
	forAll(t, func(t *testing.T, binary servertest.Binary) {
		server := servertest.StartRedis(t, binary)
		for _, c := range []struct{ do, undo, says string }{
			{"CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "refused with OOM: its memory is full: raise maxmemory"},
			{"REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "refused with READONLY: it is a replica"},
			{"CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0",
				"refused with NOREPLICAS: it has fewer replicas"},
			{"ACL SETUSER default -evalsha", "ACL SETUSER default +evalsha",
				"refused with NOPERM: the user may not do that: allow eval"},
		} {
			var log proctest.Log
			warnings := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})
			s, err := quotaservice.NewService(t.Context(), quotaservice.Options{
				Store: open(t, "redis://"+server.Addr()), Log: slog.New(warnings),
			})
			require.NoError(t, err)
			a := newAsker(t, s, quota.Definition{
				ID: 1, Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 20, PeriodNs: int64(time.Hour)}},
			})
			require.Equal(t, quota.Granted, a.ask(t, [16]byte{})[0].Outcome)
			require.Empty(t, log.String())
			began := time.Now()
			server.Do(strings.Fields(c.do)...)
			for range 20 {
				require.Equal(t, quota.Unavailable, a.ask(t, [16]byte{})[0].Outcome)
			}
			require.Contains(t, log.String(), c.says)
			s.Heartbeat()
			server.Do(strings.Fields(c.undo)...)
			require.LessOrEqual(t, strings.Count(log.String(), "msg="), 1+int(time.Since(began)/(10*time.Second)), log.String())
		}
	})
}
