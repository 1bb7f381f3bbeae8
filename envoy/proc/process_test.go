package proc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// empty is an Envoy that serves nothing, with an admin interface on a port of the kernel's choice.
const empty = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}"

func start(t *testing.T, bootstrap string) *Process {
	t.Helper()
	p, err := Start(t.Context(), Options{Bootstrap: []byte(bootstrap), Concurrency: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestProcessTellsOfItself(t *testing.T) {
	ctx := within(t, 60*time.Second)
	p := start(t, empty)
	require.NoError(t, p.WaitReady(ctx))
	require.NoError(t, p.WaitLog(ctx, "starting main dispatch loop"))

	_, err := p.Listener(ctx, "other")
	require.ErrorContains(t, err, `none is named "other"`)
	allocated, err := p.Memory(ctx)
	require.NoError(t, err)
	require.Greater(t, allocated, uint64(1<<20))
	resident, err := p.RSS()
	require.NoError(t, err)
	require.Greater(t, resident, uint64(1<<20))
	used, err := p.CPU()
	require.NoError(t, err)
	require.Greater(t, used, time.Duration(0))

	require.NoError(t, p.Stop())
	require.NoError(t, p.Stop(), "stopping twice")
	require.NoDirExists(t, p.dir)
	require.ErrorContains(t, p.WaitReady(ctx), "it ended")
}

func TestWaitReadyTellsWhy(t *testing.T) {
	p := start(t, "admin: {door: {}}")
	err := p.WaitReady(within(t, 60*time.Second))
	require.ErrorContains(t, err, "it ended: exit status 1")
	require.ErrorContains(t, err, "door", "Envoy's own words")
}

func TestValidateRefusesUnknownFields(t *testing.T) {
	path, err := Find()
	require.NoError(t, err)
	ctx := within(t, 60*time.Second)
	require.NoError(t, Validate(ctx, path, []byte(empty)))
	require.ErrorContains(t, Validate(ctx, path, []byte("static_resources: {listener: []}")), "static_resources")
}

func TestStartEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, Options{Bootstrap: []byte(empty)})
	require.NoError(t, err)
	cancel()
	<-p.Done()
}
