package store

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// backupOf makes a backup of a store that is open.
func backupOf(t *testing.T, b Store) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "sluice.backup")
	from, size, err := b.Backup(t.Context())
	require.NoError(t, err)
	_, err = Save(file, func(w io.Writer) error {
		n, err := io.Copy(w, from)
		require.Equal(t, size, n)
		return err
	})
	require.NoError(t, err)
	require.NoError(t, from.Close())
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	return file
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRestoreNeverGivesANumberAgain(t *testing.T) {
	dir, ctx := filled(t), t.Context()
	b := open(t, dir)
	backup := backupOf(t, b)
	appendAll(t, b, "lost", "lost", "lost", "lost")
	_, err := Restore(backup, dir, false)
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, b.Close())

	r, err := Restore(backup, dir, false)
	require.NoError(t, err)
	require.Equal(t, Contents{Revisions: 3, Newest: 3, Given: 7}, r.Contents)
	require.ElementsMatch(t, []string{FileName, LastName, filepath.Base(r.Kept)}, files(t, dir))
	b = open(t, dir)
	_, err = b.Get(ctx, 4)
	require.ErrorIs(t, err, ErrNotFound)
	next, err := add(ctx, b, draft("next"))
	require.NoError(t, err)
	require.Equal(t, uint64(8), next.Number)
	audit, err := b.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Equal(t, "restore", audit[1].Action)
	require.Greater(t, audit[1].ID, uint64(7), "ids of audit entries go on too")

	// Not even where the restored one is backed up and goes elsewhere.
	elsewhere := t.TempDir()
	r, err = Restore(backupOf(t, b), elsewhere, false)
	require.NoError(t, err)
	require.Empty(t, r.Kept)
	next, err = add(ctx, open(t, elsewhere), draft("next"))
	require.NoError(t, err)
	require.Equal(t, uint64(9), next.Number)
}

// What is left of a database that lost its newest transaction can be gone on with,
// knowingly. A restore that is cut off leaves a directory that is refused, and can be
// done again.
func TestRestoreIntoADirectoryThatIsRefused(t *testing.T) {
	for name, ruin := range map[string]func(dir, backup string) (from string){
		"newest transaction lost": func(dir, _ string) string {
			ruinNewestMeta(t, dir)
			return filepath.Join(dir, FileName)
		},
		"old one moved away": func(dir, backup string) string {
			require.NoError(t, os.Rename(filepath.Join(dir, FileName), filepath.Join(dir, "old")))
			return backup
		},
		"new one in place": func(dir, backup string) string {
			content, err := os.ReadFile(backup)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), content, 0o600))
			return backup
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, backup := filled(t), filepath.Join(t.TempDir(), "backup")
			_, err := BackupDir(dir, backup)
			require.NoError(t, err)
			b := open(t, dir)
			appendAll(t, b, "lost")
			require.NoError(t, b.Close())
			from := ruin(dir, backup)
			_, err = Open(dir)
			require.ErrorIs(t, err, ErrDamaged)
			_, err = BackupDir(dir, filepath.Join(t.TempDir(), "backup"))
			require.Error(t, err, "what lacks something is no backup")
			r, err := Restore(from, dir, false)
			require.NoError(t, err)
			require.Equal(t, Contents{Revisions: 3, Newest: 3, Given: 4}, r.Contents)
			next, err := add(t.Context(), open(t, dir), draft("next"))
			require.NoError(t, err)
			require.Equal(t, uint64(5), next.Number)
		})
	}
}

func TestRestoreRefusesWhatIsNotWhole(t *testing.T) {
	dir := filled(t)
	backup := filepath.Join(t.TempDir(), "backup")
	_, err := BackupDir(dir, backup)
	require.NoError(t, err)
	whole, err := os.ReadFile(backup)
	require.NoError(t, err)
	flipped := bytes.ReplaceAll(whole, []byte("second of all"), []byte("sEcond of all"))
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("no backup"),
		"cut": whole[:len(whole)-1], "half": whole[:len(whole)/2], "flipped": flipped,
		"other format": bytes.Replace(whole, []byte("format"+format), []byte("format9"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(backup, content, 0o600))
			_, err := Restore(backup, dir, false)
			require.Error(t, err)
			require.ElementsMatch(t, []string{FileName, LastName}, files(t, dir))
			require.NoError(t, open(t, dir).Close(), "what was there is there")
		})
	}
	_, err = Restore("/dev/zero", dir, false)
	require.ErrorContains(t, err, "not a regular file")

	// What is damaged can be left out.
	require.NoError(t, os.WriteFile(backup, flipped, 0o600))
	r, err := Restore(backup, dir, true)
	require.NoError(t, err)
	require.Equal(t, []string{"revision 2 (yaml)", "revision 2 (json)"}, r.Dropped)
	require.Equal(t, Contents{Revisions: 2, Newest: 3, Given: 3}, r.Contents)
	_, err = Check(filepath.Join(dir, FileName))
	require.NoError(t, err)
}

func TestSaveLeavesNothingHalf(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	for _, end := range []error{io.ErrUnexpectedEOF, nil} {
		_, err := Save(file, func(w io.Writer) error { _, _ = w.Write(make([]byte, 100_000)); return end })
		require.Error(t, err)
		require.Empty(t, files(t, dir))
	}
	require.NoError(t, os.Symlink("elsewhere", file))
	_, err := Save(file, func(io.Writer) error { return nil })
	require.ErrorContains(t, err, "not a regular file")
}
