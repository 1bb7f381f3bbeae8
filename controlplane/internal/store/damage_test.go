package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// filled is a directory with a closed store of three revisions.
func filled(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	b, err := Open(dir)
	require.NoError(t, err)
	for _, text := range []string{"first", "second", "third"} {
		d := draft(text + strings.Repeat(" of all", 300))
		d.File = text + ".yaml"
		_, err := b.Append(t.Context(), d)
		require.NoError(t, err)
	}
	require.NoError(t, b.SaveReply(t.Context(), Reply{Node: "edge-1", Revision: 2, Accepted: true}))
	require.NoError(t, b.Close())
	return dir
}

// rewrite changes a store's file.
func rewrite(t *testing.T, file string, change func(content []byte)) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	change(content)
	require.NoError(t, os.WriteFile(file, content, 0o600))
}

func TestChangedByteIsFoundOnRead(t *testing.T) {
	for _, text := range []string{"second of all", `{"of":"second`, `"file":"second.yaml"`, `"sha256":"8e`} {
		t.Run(text, func(t *testing.T) {
			dir, ctx := filled(t), t.Context()
			rewrite(t, filepath.Join(dir, FileName), func(content []byte) {
				if text == `"sha256":"8e` { // the second revision's, whatever it is
					_, after, found := bytes.Cut(content, []byte(`"file":"second.yaml"`))
					require.True(t, found)
					text = string(after[:100])
				}
				for at := 0; ; at++ {
					next := bytes.Index(content[at:], []byte(text))
					if next < 0 {
						require.NotZero(t, at)
						return
					}
					at += next
					content[at+len(text)-1] ^= 1
				}
			})
			_, err := Check(filepath.Join(dir, FileName))
			require.ErrorContains(t, err, "not what was stored: revision 2")
			b := open(t, dir)
			_, err = b.Get(ctx, 2)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, "revision 2")
			for number, want := range map[uint64]string{1: "first", 3: "third"} {
				r, err := b.Get(ctx, number)
				require.NoError(t, err)
				require.Contains(t, string(r.YAML), want)
			}
			list, err := b.History(ctx, 0)
			require.NoError(t, err)
			require.Len(t, list, 3)
			require.Equal(t, uint64(2), list[1].Number)
			r, err := b.Append(ctx, draft("next"))
			require.NoError(t, err)
			require.Equal(t, uint64(4), r.Number)
		})
	}
}

// Whichever byte of the file changes: what is read is what was stored, or an
// error that says that it is not.
func TestAnyChangedByte(t *testing.T) {
	dir, ctx := filled(t), t.Context()
	file := filepath.Join(dir, FileName)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	refused, damaged := 0, 0
	for at := 0; at < len(whole); at += 41 {
		changed := bytes.Clone(whole)
		changed[at] ^= 1 << (at % 8)
		require.NoError(t, os.WriteFile(file, changed, 0o600))
		b, err := Open(dir)
		if err != nil {
			refused++
			continue
		}
		for i, text := range []string{"first", "second", "third"} {
			r, err := b.Get(ctx, uint64(i+1))
			if err != nil {
				require.ErrorIs(t, err, ErrDamaged, "byte %d", at)
				require.ErrorContains(t, err, fmt.Sprint("revision ", i+1))
				damaged++
				continue
			}
			require.Equal(t, text+strings.Repeat(" of all", 300), string(r.YAML), "byte %d", at)
			require.Equal(t, `{"of":"`+string(r.YAML)+`"}`, string(r.JSON), "byte %d", at)
			require.Equal(t, text+".yaml", r.File, "byte %d", at)
		}
		require.NoError(t, b.Close())
	}
	require.Positive(t, refused)
	require.Positive(t, damaged)
}

// ruinNewestMeta makes bbolt take the meta page before.
func ruinNewestMeta(t *testing.T, dir string) {
	t.Helper()
	rewrite(t, filepath.Join(dir, FileName), func(content []byte) {
		transaction := func(page int) uint64 { return binary.NativeEndian.Uint64(content[page+64:]) }
		page := 0
		if second := os.Getpagesize(); transaction(second) > transaction(0) {
			page = second
		}
		content[page+64]++
	})
}

func TestLostTransactionIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Bolt) error{
		"apply": func(b *Bolt) error { _, err := b.Append(t.Context(), draft("x")); return err },
		"drop":  func(b *Bolt) error { return b.Drop(t.Context(), []uint64{1}) },
		"book": func(b *Bolt) error {
			return b.SaveReply(t.Context(), Reply{Node: "edge-1", Revision: 3})
		},
		"forget": func(b *Bolt) error { return b.Forget(t.Context(), Identity{Node: "edge-1"}) },
		"record": func(b *Bolt) error { _, err := b.Record(t.Context(), Entry{Action: "x"}); return err },
		"settle": func(b *Bolt) error { return b.Settle(t.Context(), 1, "done") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t)
			before, err := os.ReadFile(filepath.Join(dir, LastName))
			require.NoError(t, err)
			b := open(t, dir)
			require.NoError(t, change(b))
			require.NoError(t, b.Close())
			ruinNewestMeta(t, dir)
			_, err = Open(dir)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, "lacks what was acknowledged")

			// A transaction that was cut off was never acknowledged.
			require.NoError(t, os.WriteFile(filepath.Join(dir, LastName), before, 0o600))
			list, err := open(t, dir).History(t.Context(), 0)
			require.NoError(t, err)
			require.Len(t, list, 3)
		})
	}
}

func TestRecordOfAcknowledgedChanges(t *testing.T) {
	ruin := func(slots ...int) func(string) error {
		return func(name string) error {
			text, err := os.ReadFile(name)
			for _, slot := range slots {
				copy(text[slot*slotBytes:], "record 99")
			}
			return errors.Join(err, os.WriteFile(name, text, 0o600))
		}
	}
	for _, tc := range []struct {
		name    string
		change  func(string) error
		refused bool
	}{
		{"first slot", ruin(0), false},
		{"second slot", ruin(1), false},
		{"both", ruin(0, 1), true},
		{"gone", os.Remove, true},
		{"empty", func(name string) error { return os.Truncate(name, 0) }, true},
		{"link", func(name string) error { return errors.Join(os.Remove(name), os.Symlink("/dev/zero", name)) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filled(t)
			require.NoError(t, tc.change(filepath.Join(dir, LastName)))
			b, err := Open(dir)
			if tc.refused {
				require.ErrorContains(t, err, LastName)
				return
			}
			require.NoError(t, err)
			require.NoError(t, b.Close())
		})
	}
	t.Run("nothing stored yet", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, open(t, dir).Close())
		require.NoError(t, os.Remove(filepath.Join(dir, LastName)))
		open(t, dir)
	})
	t.Run("database gone", func(t *testing.T) {
		dir := filled(t)
		require.NoError(t, os.Remove(filepath.Join(dir, FileName)))
		_, err := Open(dir)
		require.ErrorIs(t, err, ErrDamaged)
		require.NoFileExists(t, filepath.Join(dir, FileName))
	})
	t.Run("database is a link", func(t *testing.T) {
		dir, file := t.TempDir(), filepath.Join(filled(t), FileName)
		require.NoError(t, os.Symlink(file, filepath.Join(dir, FileName)))
		_, err := Open(dir)
		require.ErrorContains(t, err, "not a regular file")
	})
}

// What cannot be recorded is not acknowledged, and reading goes on.
func TestRecordThatCannotBeWritten(t *testing.T) {
	dir, ctx := filled(t), t.Context()
	b := open(t, dir)
	changed := b.Appended()
	f, err := os.Open(b.last.f.Name()) // not to be written to
	require.NoError(t, err)
	b.last.f = f
	_, err = b.Append(ctx, draft("x"))
	require.ErrorContains(t, err, "record acknowledged change")
	require.ErrorContains(t, b.Healthy(ctx), "the last change could not be stored")
	require.Error(t, b.SaveReply(ctx, Reply{Node: "edge-1", Revision: 3}))
	_, err = b.Record(ctx, Entry{Action: "x"})
	require.Error(t, err)
	require.Empty(t, changed)
	_, err = b.Get(ctx, 3)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	r, err := open(t, dir).Append(ctx, draft("y"))
	require.NoError(t, err)
	require.Equal(t, uint64(5), r.Number, "the one that was not acknowledged has its number all the same")
}

// A change that failed says nothing about the next one.
func TestHealthyAgain(t *testing.T) {
	b, ctx := open(t, filled(t)), t.Context()
	require.ErrorContains(t, b.commit(ctx, "x", func(func(*bbolt.Tx) error) error { return syscall.ENOSPC }, nil), "no space")
	require.NoError(t, b.Healthy(ctx))
	list, err := b.History(ctx, 0)
	require.NoError(t, err)
	require.Len(t, list, 3, "a probe is no change")
	require.ErrorContains(t, b.commit(ctx, "x", func(func(*bbolt.Tx) error) error { return syscall.ENOSPC }, nil), "no space")
	require.ErrorContains(t, b.Healthy(ctx), "no space", "it is not asked for each time")
}

// A database that is no longer at its place would take changes until the process
// ends, and have none of them afterwards.
func TestFilesThatAreTakenAway(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"directory removed": os.RemoveAll,
		"directory moved":   func(dir string) error { return os.Rename(dir, dir+".old") },
		"database removed":  func(dir string) error { return os.Remove(filepath.Join(dir, FileName)) },
		"record removed":    func(dir string) error { return os.Remove(filepath.Join(dir, LastName)) },
		"database replaced": func(dir string) error {
			file := filepath.Join(dir, FileName)
			content, err := os.ReadFile(file)
			return errors.Join(err, os.Remove(file), os.WriteFile(file, content, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, ctx := filled(t), t.Context()
			b := open(t, dir)
			require.NoError(t, b.Healthy(ctx))
			require.NoError(t, take(dir))
			require.ErrorContains(t, b.Healthy(ctx), "has been taken away or replaced")
			_, err := b.Append(ctx, draft("x"))
			require.ErrorContains(t, err, "has been taken away or replaced")
			_, err = b.Record(ctx, Entry{Action: "x"})
			require.Error(t, err)
			r, err := b.Get(ctx, 3)
			require.NoError(t, err, "reading goes on")
			require.Equal(t, uint64(3), r.Number)
			require.NoError(t, b.Close())
		})
	}
}

// What another program made of the file is refused at once, whatever it says
// there is.
func TestAbsurdPages(t *testing.T) {
	dir := t.TempDir()
	b, err := Open(dir)
	require.NoError(t, err)
	for range 60 {
		_, err := b.Append(t.Context(), draft(strings.Repeat("x", 1000)))
		require.NoError(t, err)
	}
	require.NoError(t, b.Close())
	whole, err := os.ReadFile(filepath.Join(dir, FileName))
	require.NoError(t, err)
	size := os.Getpagesize()
	// each calls change for all pages of a kind.
	each := func(kind uint16, change func(page []byte)) func([]byte) {
		return func(content []byte) {
			for at := 2 * size; at+size <= len(content); at += size {
				if page := content[at:]; binary.NativeEndian.Uint16(page[8:]) == kind && binary.NativeEndian.Uint64(page) == uint64(at/size) {
					change(page)
				}
			}
		}
	}
	order := binary.NativeEndian
	for name, change := range map[string]func([]byte){
		"loop":        each(branchPage, func(page []byte) { order.PutUint64(page[24:], order.Uint64(page)) }),
		"twice":       each(branchPage, func(page []byte) { copy(page[24:32], page[40:48]) }),
		"count":       each(0x02, func(page []byte) { order.PutUint16(page[10:], 0xFFFF) }),
		"no branches": each(branchPage, func(page []byte) { order.PutUint16(page[10:], 0) }),
		"overflow":    each(0x02, func(page []byte) { order.PutUint32(page[12:], 0xFFFFFFFF) }),
		"value":       each(0x02, func(page []byte) { order.PutUint32(page[28:], 0xFFFFFFFF) }),
		"key":         each(0x02, func(page []byte) { order.PutUint32(page[24:], 0xFFFFFFF0) }),
		"free count":  each(0x10, func(page []byte) { order.PutUint16(page[10:], 0xFFFF); order.PutUint64(page[16:], 1<<20) }),
		"free in use": each(0x10, func(page []byte) { order.PutUint64(page[16:], order.Uint64(page)) }),
		"beyond":      each(branchPage, func(page []byte) { order.PutUint64(page[24:], 1<<50) }),
		"bucket's root": each(0x02, func(page []byte) {
			b := bytes.Index(page[:size], []byte("yaml"))
			order.PutUint64(page[max(b, 0)+4:], 1<<60)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			content := bytes.Clone(whole)
			change(content)
			require.NotEqual(t, whole, content)
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), content, 0o600))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			watch := buildtest.StartStopwatch()
			_, err := Open(dir)
			require.ErrorIs(t, err, ErrDamaged)
			require.Less(t, watch.Elapsed(), 5*time.Second)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
}
