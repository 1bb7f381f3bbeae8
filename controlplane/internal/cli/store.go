package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// backupOptions are the flags of store backup.
type backupOptions struct {
	clientOptions
	data string
	file string
}

// AddFlags adds the flags.
func (o *backupOptions) AddFlags(cmd *cobra.Command) {
	o.clientOptions.AddFlags(cmd)
	cmd.Flags().StringVarP(&o.file, "out", "o", "", "`FILE` to write")
	markRequired(cmd, "out")
	cmd.Flags().StringVar(&o.data, "data", "", "`DIR` of a stopped serve, instead of --server")
}

func newBackupCommand() *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:   "backup -o FILE",
		Short: "Copy the store to a file, while serve runs or is stopped",
		Long: `Copy all revisions, the proxies' replies to them and the audit log to a file. The copy is
of one moment, and serve goes on meanwhile. The file gets its name when it is checked and
durable. It replaces an older backup of that name.

If serve is stopped, use --data to copy its directory.`,
		Example: `  sluice store backup -o sluice.backup
  sluice store backup -o sluice.backup --server https://10.0.0.5:18080 --token-file token
  sluice store backup -o sluice.backup --data /var/lib/sluice`,
		RunE: func(cmd *cobra.Command, _ []string) error { return backup(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func backup(cmd *cobra.Command, o *backupOptions) error {
	if err := checkDirectory(o.data, "leave out --data to copy from a serve on it"); err != nil {
		return err
	}
	var contents store.Contents
	var err error
	if o.data != "" {
		contents, err = store.BackupDir(o.data, o.file)
	} else {
		contents, err = backupServer(cmd, o)
	}
	switch {
	case o.data != "" && errors.Is(err, store.ErrHeld):
		return withHint(err, "sluice serve runs there: leave out --data to copy from it")
	case err != nil:
		return storeHint(err, o.data)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, the newest is %d\n",
		printable.Text(o.file), count(contents.Revisions, "revision", "revisions"), contents.Newest)
	return nil
}

func backupServer(cmd *cobra.Command, o *backupOptions) (store.Contents, error) {
	c, err := o.client()
	if err != nil {
		return store.Contents{}, err
	}
	from, err := c.open(cmd.Context(), http.MethodGet, "/v1/backup", nil, content{})
	if err != nil {
		return store.Contents{}, err
	}
	defer from.Close()
	return store.Save(o.file, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		if cmd.Context().Err() != nil {
			return errInterrupted
		}
		return err
	})
}

// restoreOptions are the flags of store restore.
type restoreOptions struct {
	data        string
	dropDamaged bool
}

// AddFlags adds the flags.
func (o *restoreOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "`DIR` of the store, created if need be")
	markRequired(cmd, "data")
	f.BoolVar(&o.dropDamaged, "drop-damaged", false, "leave out damaged entries instead of rejecting the backup")
}

func newRestoreCommand() *cobra.Command {
	var o restoreOptions
	cmd := &cobra.Command{
		Use:   "restore --data DIR FILE",
		Short: "Put a backup in place of the store",
		Long: `Check a backup and put it in place of the store in a directory, where serve must not
run. The old store stays, under a name that is printed. Revisions that only
the old store has are lost, and their numbers are not used again.

FILE may be sluice.db of the same directory. Then serve goes on with what is left of it:
without the latest change if that was cut off, and with --drop-damaged without damaged
revisions.`,
		Example: `  sluice store restore sluice.backup --data /var/lib/sluice
  sluice store restore /var/lib/sluice/sluice.db --data /var/lib/sluice --drop-damaged`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return restore(cmd, args[0], &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func restore(cmd *cobra.Command, file string, o *restoreOptions) error {
	if err := checkDirectory(o.data, "sluice store copy BACKUP URL makes a store there from a backup"); err != nil {
		return err
	}
	r, err := store.Restore(file, o.data, o.dropDamaged)
	if errors.Is(err, store.ErrDamaged) && !o.dropDamaged {
		return withHint(err, "take another backup, or leave out damaged entries with --drop-damaged")
	}
	if err != nil {
		return storeHint(err, "")
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "restored %s, the newest is %d\n", count(r.Revisions, "revision", "revisions"), r.Newest)
	for _, name := range r.Dropped {
		fmt.Fprintf(w, "left out, damaged: %s\n", printable.Text(name))
	}
	if r.Given > r.Newest {
		fmt.Fprintf(w, "lost: numbers up to %d were given before, so the next revision is %d\n", r.Given, r.Given+1)
	}
	if r.Unknown {
		fmt.Fprintln(w, "the numbers that were given here before cannot be read: they may be repeated")
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "what was there before: %s\n", printable.Text(r.Kept))
	}
	return nil
}

// checkDirectory rejects --data if it is a URL.
func checkDirectory(data, hint string) error {
	if store.IsURL(data) {
		return usageError(errors.New("--data is a URL, not a directory"), hint)
	}
	return nil
}

// openStore opens a store at a URL or in a directory.
func openStore(ctx context.Context, at string, log *slog.Logger) (store.Target, error) {
	if store.IsURL(at) {
		return store.OpenEtcd(ctx, at, log)
	}
	s, err := store.Open(at)
	return s, storeHint(err, at)
}

// storeHint says what to do about a store that is held, or damaged in a directory.
func storeHint(err error, dir string) error {
	if errors.Is(err, store.ErrHeld) {
		return withHint(err, "stop sluice serve first")
	}
	if !errors.Is(err, store.ErrDamaged) || dir == "" {
		return err
	}
	return withHint(err, fmt.Sprintf("sluice store restore BACKUP --data %s puts a backup there; "+
		"BACKUP may be %s of that directory, with --drop-damaged to leave out what is damaged", dir, store.FileName))
}

func newCopyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Copy a store from a directory to etcd, or back",
		Long: `Copy all revisions with their numbers, the proxies' replies to them, the audit log and the
secret to an empty store. FROM and TO are directories, where serve must not run, or URLs
like that of serve --store; FROM may also be a backup. Stop every serve on FROM first:
changes that are applied later are not in the copy. Proxies see no difference between a
serve on the copy and one on the original. serve rejects an incomplete copy.`,
		Example: `  sluice store copy /var/lib/sluice etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  sluice store copy 'etcds://etcd.corp:2379/?ca=etcd-ca.pem' /var/lib/sluice
  sluice store copy sluice.backup etcd://10.0.0.1:2379/another`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return copyStore(cmd, args[0], args[1]) },
	}
}

func copyStore(cmd *cobra.Command, from, to string) (err error) {
	source, err := store.OpenCopy(cmd.Context(), from)
	if err != nil {
		return storeHint(err, from)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := openStore(cmd.Context(), to, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	c, err := store.Copy(cmd.Context(), source, target)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", printable.Text(to), err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "copied %s, the newest is %d\n",
		count(c.Revisions, "revision", "revisions"), c.Newest)
	return nil
}
