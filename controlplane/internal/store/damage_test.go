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
)

// filled is a directory with a closed store of three revisions.
func filled(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	b := open(t, dir)
	long := strings.Repeat(" of all", 300)
	appendAll(t, b, "first"+long, "second"+long, "third"+long)
	require.NoError(t, b.SaveReply(t.Context(), Reply{Node: "edge-1", Revision: 2, Accepted: true}))
	require.NoError(t, b.Close())
	return dir
}

// Whichever byte of the file changes: what is read is what was stored, or an
// error that says that it is not. The others are there, and so is the next one.
func TestAnyChangedByte(t *testing.T) {
	dir, ctx := filled(t), t.Context()
	var stored [4]Revision
	b := open(t, dir)
	for n := range stored[1:] {
		stored[n+1], _ = b.Get(ctx, uint64(n+1))
	}
	require.NoError(t, b.Close())
	file, lastFile := filepath.Join(dir, FileName), filepath.Join(dir, LastName)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	last, err := os.ReadFile(lastFile)
	require.NoError(t, err)
	refused, damaged := 0, 0
	step := 41
	if testing.Short() {
		step *= 10
	}
	for at := 0; at < len(whole); at += step {
		changed := bytes.Clone(whole)
		changed[at] ^= 1 << (at % 8)
		require.NoError(t, errors.Join(os.WriteFile(file, changed, 0o600), os.WriteFile(lastFile, last, 0o600)))
		_, flaw := Check(file)
		b, err := Open(dir)
		if err != nil {
			refused++
			continue
		}
		for _, want := range stored[1:] {
			r, err := b.Get(ctx, want.Number)
			if err != nil {
				require.ErrorIs(t, err, ErrDamaged, "byte %d", at)
				require.ErrorContains(t, err, fmt.Sprint("revision ", want.Number))
				require.ErrorContains(t, flaw, fmt.Sprintf("not what was stored: revision %d", want.Number))
				damaged++
				continue
			}
			r.Acked = want.Acked // a damaged mark is none
			require.Equal(t, want, r, "byte %d", at)
		}
		require.Equal(t, []uint64{3, 2, 1}, numbersOf(t, b, "", 0))
		if damaged%10 == 0 {
			r, err := add(ctx, b, draft("next"))
			require.NoError(t, err)
			require.Equal(t, uint64(4), r.Number)
		}
		require.NoError(t, b.Close())
	}
	require.Positive(t, refused)
	require.Positive(t, damaged)
}

// ruins returns what can become of a database's file: changes of its content.
func ruins(length int) map[string]func(content []byte) []byte {
	const branch, leaf, freelist = 0x01, 0x02, 0x10
	order, size := binary.NativeEndian, os.Getpagesize()
	cut := func(n int) func([]byte) []byte { return func(content []byte) []byte { return content[:n] } }
	fill := func(with byte) func([]byte) []byte {
		return func(content []byte) []byte {
			return append(content[:2*size], bytes.Repeat([]byte{with}, len(content)-2*size)...)
		}
	}
	// each calls change for all pages of a kind.
	each := func(kind uint16, change func(page []byte)) func([]byte) []byte {
		return func(content []byte) []byte {
			for at := 2 * size; at+size <= len(content); at += size {
				if page := content[at:]; order.Uint16(page[8:]) == kind && order.Uint64(page) == uint64(at/size) {
					change(page)
				}
			}
			return content
		}
	}
	inYAML := func(page []byte) []byte { return page[max(bytes.Index(page[:size], []byte("yaml")), 0)+4:] }
	return map[string]func([]byte) []byte{
		"text":          func([]byte) []byte { return []byte("this is no database, whatever its name\n") },
		"a page":        cut(size),
		"both metas":    cut(2 * size),
		"half":          cut(length / 2),
		"overwritten":   fill(0xA5),
		"zeroed":        fill(0),
		"loop":          each(branch, func(page []byte) { order.PutUint64(page[24:], order.Uint64(page)) }),
		"twice":         each(branch, func(page []byte) { copy(page[24:32], page[40:48]) }),
		"beyond":        each(branch, func(page []byte) { order.PutUint64(page[24:], 1<<50) }),
		"a bit beyond":  each(branch, func(page []byte) { order.PutUint64(page[24:], 1<<20) }),
		"no branches":   each(branch, func(page []byte) { order.PutUint16(page[10:], 0) }),
		"count":         each(leaf, func(page []byte) { order.PutUint16(page[10:], 0xFFFF) }),
		"overflow":      each(leaf, func(page []byte) { order.PutUint32(page[12:], 0xFFFFFFFF) }),
		"value":         each(leaf, func(page []byte) { order.PutUint32(page[28:], 0xFFFFFFFF) }),
		"key":           each(leaf, func(page []byte) { order.PutUint32(page[24:], 0xFFFFFFF0) }),
		"free count":    each(freelist, func(page []byte) { order.PutUint16(page[10:], 0xFFFF) }),
		"free in use":   each(freelist, func(page []byte) { order.PutUint64(page[16:], order.Uint64(page)) }),
		"bucket's root": each(leaf, func(page []byte) { order.PutUint64(inYAML(page), 1<<60) }),
	}
}

// A copy that was interrupted, or what another program made of the file, is refused
// at once, whatever it says there is.
func TestFileThatMakesNoSense(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	for i := range 60 {
		appendAll(t, b, strings.Repeat("x", 1000+50*i))
	}
	require.NoError(t, b.Close())
	whole, err := os.ReadFile(filepath.Join(dir, FileName))
	require.NoError(t, err)
	for name, change := range ruins(len(whole)) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			content := change(bytes.Clone(whole))
			require.NotEqual(t, whole, content)
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), content, 0o600))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Open(dir)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, filepath.Join(dir, FileName))
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
}

// ruinNewestMeta makes bbolt take the meta page before.
func ruinNewestMeta(t *testing.T, dir string) {
	t.Helper()
	file := filepath.Join(dir, FileName)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	transaction := func(page int) uint64 { return binary.NativeEndian.Uint64(content[page+64:]) }
	page := 0
	if second := os.Getpagesize(); transaction(second) > transaction(0) {
		page = second
	}
	content[page+64]++
	require.NoError(t, os.WriteFile(file, content, 0o600))
}

func TestLostTransactionIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Bolt) error{
		"append": func(b *Bolt) error { _, err := add(t.Context(), b, draft("x")); return err },
		"reply":  func(b *Bolt) error { return b.SaveReply(t.Context(), Reply{Node: "edge-1", Revision: 3}) },
		"record": func(b *Bolt) error { _, err := b.Record(t.Context(), Entry{Action: "x"}); return err },
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
			list, err := open(t, dir).History(t.Context(), "", 0)
			require.NoError(t, err)
			require.Len(t, list, 3)
		})
	}
}

func TestMissingFiles(t *testing.T) {
	ruin := func(slots ...int) func(string) error {
		return func(dir string) error {
			name := filepath.Join(dir, LastName)
			text, err := os.ReadFile(name)
			for _, slot := range slots {
				copy(text[slot*slotBytes:], "record 99")
			}
			return errors.Join(err, os.WriteFile(name, text, 0o600))
		}
	}
	replace := func(name string, with func(name string) error) func(string) error {
		return func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, name)), with(filepath.Join(dir, name)))
		}
	}
	gone := func(string) error { return nil }
	empty := func(name string) error { return os.WriteFile(name, nil, 0o600) }
	link := func(name string) error { return os.Symlink("/dev/zero", name) }
	for _, tc := range []struct {
		name    string
		change  func(dir string) error
		refused string
	}{
		{"first slot", ruin(0), ""},
		{"second slot", ruin(1), ""},
		{"both slots", ruin(0, 1), "not whole"},
		{"record gone", replace(LastName, gone), "not beside it"},
		{"record empty", replace(LastName, empty), "not whole"},
		{"record a link", replace(LastName, link), "not a regular file"},
		{"database gone", replace(FileName, gone), "it is gone"},
		{"database empty", replace(FileName, empty), "lacks what was acknowledged"},
		{"database a link", replace(FileName, link), "not a regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filled(t)
			require.NoError(t, tc.change(dir))
			b, err := Open(dir)
			if tc.refused != "" {
				require.ErrorContains(t, err, tc.refused)
				return
			}
			require.NoError(t, err)
			require.NoError(t, b.Close())
		})
	}
	dir := t.TempDir()
	require.NoError(t, open(t, dir).Close())
	require.NoError(t, os.Remove(filepath.Join(dir, LastName)))
	open(t, dir) // nothing was stored yet
}

// What cannot be recorded is not acknowledged. It counts all the same: the error says so, and who waits for
// changes learns of it at once, not with the next one.
func TestRecordThatCannotBeWritten(t *testing.T) {
	dir, ctx := filled(t), t.Context()
	b := open(t, dir)
	appended := b.Appended()
	f, err := os.Open(b.last.f.Name()) // to read only
	require.NoError(t, err)
	b.last.f = f
	_, err = add(ctx, b, draft("x"))
	require.ErrorContains(t, err, "the change is stored, but its record is not: record acknowledged change")
	require.NotEqual(t, appended, b.Appended())
	require.Equal(t, []uint64{4, 3, 2, 1}, numbersOf(t, b, "", 0))
	require.ErrorContains(t, b.Healthy(ctx), "the last change could not be stored")
	require.Error(t, b.SaveReply(ctx, Reply{Node: "edge-1", Revision: 3}))
	require.NoError(t, b.Close())
	r, err := add(ctx, open(t, dir), draft("y"))
	require.NoError(t, err)
	require.Equal(t, uint64(5), r.Number, "the one that was not acknowledged has its number all the same")
}

// A change that failed says nothing about the next one; that a small one is stored says
// nothing about the next revision.
func TestHealthyAgain(t *testing.T) {
	b, ctx := open(t, filled(t)), t.Context()
	b.batch = func(func(*bbolt.Tx) error) error { return syscall.ENOSPC }
	_, err := add(ctx, b, draft("x"))
	require.ErrorContains(t, err, "no space")
	require.ErrorContains(t, b.Healthy(ctx), "no space")
	b.batch = b.db.Batch
	require.ErrorContains(t, b.Healthy(ctx), "no space", "it is not tried each time")
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "edge-1", Revision: 3}))
	require.ErrorContains(t, b.Healthy(ctx), "no space")
	b.probed = time.Time{}
	require.NoError(t, b.Healthy(ctx))
	require.Len(t, numbersOf(t, b, "", 0), 3, "a probe is no change")
	b.setFailed(err)
	appendAll(t, b, "x")
	require.NoError(t, b.Healthy(ctx))
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
			_, err := add(ctx, b, draft("x"))
			require.ErrorContains(t, err, "has been taken away or replaced")
			_, err = b.Get(ctx, 3)
			require.NoError(t, err, "reading goes on")
		})
	}
}
