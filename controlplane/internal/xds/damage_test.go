package xds

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// spoil changes a byte of a stored policy.
func (f *fixture) spoil(domain string) {
	f.t.Helper()
	file := filepath.Join(f.dir, store.FileName)
	content, err := os.ReadFile(file)
	require.NoError(f.t, err)
	opened, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(f.t, err)
	json, found := []byte(`"domain":"`+domain+`"`), 0
	for at := bytes.Index(content, json); at >= 0; at = bytes.Index(content, json) {
		_, err = opened.WriteAt([]byte("?"), int64(at+len(json)-2))
		require.NoError(f.t, err)
		content[at] = 0 // not to be found again
		found++
	}
	require.NotZero(f.t, found)
	require.NoError(f.t, opened.Close())
}

func TestDamagedRevisionIsNotPushed(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	f.apply("two")
	e := f.proxy("e1")
	e.accept("two")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 2 })
	f.apply("three")
	e.accept("three")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 3 })
	e.hangUpAndWait()

	f.stop()
	f.spoil("three")
	f.start()
	require.Equal(t, []uint64{3}, f.server.Ledger().Damaged(""))
	e.connect() // it holds the one that is damaged
	e.accept("two")
	fresh := f.proxy("fresh")
	fresh.accept("two")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 2 && f.status("fresh").Acked == 2 })
	require.Zero(t, f.server.Ledger().Behind())

	require.Equal(t, uint64(4), f.apply("four"))
	e.accept("four")
	fresh.accept("four")
}

// The file may be damaged while serve runs, too.
func TestDamageFoundAtThePush(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	f.apply("two")
	f.eventually("known", func() bool { return f.server.Ledger().Newest() == 2 })
	f.spoil("two") // bbolt has the file mapped
	f.proxy("e1").accept("one")
	require.Equal(t, []uint64{2}, f.server.Ledger().Damaged(""))
	f.spoil("one")
	f.proxy("fresh").accept("one") // what was read while it was whole is kept
	require.Equal(t, []uint64{2}, f.server.Ledger().Damaged(""))
}

func TestDamagedRevisionIsDroppedByAge(t *testing.T) {
	f := newFixture(t)
	for _, domain := range []string{"one", "two", "three", "four"} {
		f.apply(domain)
	}
	f.stop()
	f.spoil("one")
	f.spoil("four")
	f.keep = 2
	f.start()
	f.eventuallyKept(4, 3, 2)
	require.Equal(t, []uint64{4}, f.server.Ledger().Damaged(""))
}
