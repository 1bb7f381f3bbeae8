package xds

import (
	"bytes"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// copied is a control plane on a copy of another's store.
func copied(t *testing.T, f *fixture) *fixture {
	t.Helper()
	from, _, err := f.store.Backup(t.Context())
	require.NoError(t, err)
	backup := filepath.Join(t.TempDir(), "backup")
	_, err = store.Save(backup, func(w io.Writer) error { _, err := io.Copy(w, from); return err })
	require.NoError(t, err)
	c := &fixture{t: t, dir: t.TempDir(), wasm: f.wasm, log: slog.New(slog.DiscardHandler)}
	_, err = store.Restore(backup, c.dir, false)
	require.NoError(t, err)
	c.start()
	t.Cleanup(c.stop)
	return c
}

// goOver connects the proxy to another control plane.
func (p *proxyClient) goOver(to *fixture) {
	p.hangUpAndWait()
	p.f = to
	p.connect()
}

// A proxy that comes with a newer revision than a copy of the store has keeps it, until a
// revision is applied there.
func TestNeverSilentlyBack(t *testing.T) {
	first := newFixture(t)
	first.apply("one")
	second := copied(t, first)
	e := first.proxy("e1")
	e.accept("one")
	first.apply("two")
	e.accept("two")
	first.apply("three")
	e.accept("three")

	e.goOver(second)
	e.nothingMore()
	st := second.state("e1", "ahead: runs revision 3 of this store, which this serve does not have")
	require.Equal(t, []uint64{3, 0}, []uint64{st.Runs, st.Offered})
	proxies, highest := second.server.Ledger().Ahead()
	require.Equal(t, []uint64{1, 3}, []uint64{uint64(proxies), highest})
	require.Zero(t, second.server.Ledger().Behind())
	second.restart()
	e.hangUp()
	e.connect()
	e.nothingMore()

	// What is applied there replaces it, and leaves no number that was given elsewhere.
	last, err := second.store.Last(t.Context())
	require.NoError(t, err)
	list, err := second.store.Append(t.Context(), store.Change{Last: last, Above: highest, Drafts: []store.Draft{{JSON: []byte(`{"domain":"four"}`)}}})
	require.NoError(t, err)
	require.Equal(t, uint64(4), list[0].Number)
	e.accept("four")
	second.state("e1", "connected")
	proxies, _ = second.server.Ledger().Ahead()
	require.Zero(t, proxies)

	// By then it is the first that is behind.
	e.goOver(first)
	e.nothingMore()
	first.state("e1", "ahead: runs revision 4 of this store, which this serve does not have")
}

// Numbers of another store say nothing here, and a proxy cannot make up that it is ahead.
func TestRevisionsOfAnotherStore(t *testing.T) {
	var log bytes.Buffer
	first := newFixture(t)
	first.apply("one")
	first.apply("two")
	e := first.proxy("e1")
	e.accept("two")
	other := newFixture(t)
	other.log = slog.New(slog.NewTextHandler(&log, nil))
	other.restart()
	other.apply("another")
	e.goOver(other)
	e.accept("another")
	other.state("e1", "connected")
	e.hangUpAndWait()
	e.version = strings.Replace(e.version, "1-", "9-", 1)
	e.connect()
	e.accept("another")
	other.stop()
	require.Equal(t, 2, strings.Count(log.String(), "a proxy comes with a revision of another store, and gets the one of this"))
	other.start()
}

func TestLineage(t *testing.T) {
	s, t2 := &Server{seal: []byte("a")}, &Server{seal: []byte("b")}
	r := revisionOf(t, 12, `{"version":1}`)
	r.seal = s.seal
	v := version(r, "1.2.3", envoy.Plugin{})
	require.Equal(t, own, s.lineage(v))
	require.Equal(t, foreign, t2.lineage(v))
	require.Equal(t, foreign, s.lineage("1"+v), "another number")
	for _, old := range []string{"", "12-1.2.3-0123456789abcdef", "12"} {
		require.Equal(t, unsealed, s.lineage(old))
	}
}
