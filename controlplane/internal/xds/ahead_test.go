package xds

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// copied is a control plane on a copy of another's store.
func copied(f *fixture) *fixture {
	f.t.Helper()
	from, _, err := f.store.Backup(f.t.Context())
	require.NoError(f.t, err)
	backup := filepath.Join(f.t.TempDir(), "backup")
	_, err = store.Save(backup, func(w io.Writer) error { _, err := io.Copy(w, from); return err })
	require.NoError(f.t, err)
	c := &fixture{t: f.t, dir: f.t.TempDir(), o: f.o}
	_, err = store.Restore(backup, c.dir, false)
	require.NoError(f.t, err)
	c.start()
	return c
}

// goOver connects the proxy to another control plane.
func (p *proxyClient) goOver(to *fixture) {
	p.hangUp()
	p.f = to
	p.connect()
}

// A proxy that comes with a newer revision than a copy of the store has keeps it, until a
// revision is applied there.
func TestNeverSilentlyBack(t *testing.T) {
	run(t, func(t *testing.T, first *fixture) {
		first.apply("one")
		second := copied(first)
		defer func() { second.halt() }()
		e := first.proxy("e1")
		accept("one", e)
		first.apply("two")
		accept("two", e)
		first.apply("three")
		accept("three", e)

		e.goOver(second)
		idle(e)
		st := second.state("e1", "ahead: runs revision 3 of this store, which this serve does not have")
		require.Equal(t, []uint64{3, 0}, []uint64{st.Runs, st.Offered})
		proxies, highest := second.ledger.Ahead()
		require.Equal(t, []uint64{1, 3}, []uint64{uint64(proxies), highest})
		require.Zero(t, second.ledger.Behind())
		second.restart()
		e.connect()
		idle(e)

		// What is applied there replaces it, and leaves no number that was given elsewhere.
		list := second.append(store.Change{Above: highest, Drafts: []store.Draft{{JSON: []byte(`{"domain":"four"}`)}}})
		require.Equal(t, uint64(4), list[0].Number)
		accept("four", e)
		second.state("e1", "connected")
		proxies, _ = second.ledger.Ahead()
		require.Zero(t, proxies)

		// By then it is the first that is behind.
		e.goOver(first)
		idle(e)
		first.state("e1", "ahead: runs revision 4 of this store, which this serve does not have")
	})
}

// Numbers of another store say nothing here, and a proxy cannot make up what it runs.
func TestRevisionsOfAnotherStore(t *testing.T) {
	run(t, func(t *testing.T, first *fixture) {
		first.apply("one", "two")
		e := first.proxy("e1")
		accept("two", e)
		other := &fixture{t: t, dir: t.TempDir(), o: first.o}
		other.start()
		defer func() { other.halt() }()
		lines := other.logged()
		other.apply("another")
		e.goOver(other)
		accept("another", e)
		never := []string{
			strings.Replace(e.version, "1-", "9-", 1), "1-a-b", "18446744073709551615-a-b", "0-a-b", "99999999999999999999-a-b",
			"1", "3-", "\x00", strings.Repeat("1", 100_000),
		}
		for _, held := range never {
			e.hangUp()
			e.version = held
			e.connect()
			accept("another", e)
			other.state("e1", "connected")
			other.runs("e1", 1)
		}
		const foreign = "a proxy comes with a revision of another store, and gets the one of this"
		require.Equal(t, 6, strings.Count(lines.String(), foreign))
	})
}
