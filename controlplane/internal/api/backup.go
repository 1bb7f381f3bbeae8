package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// maxBackupTime is how long a caller may take to receive a backup.
	maxBackupTime = 30 * time.Minute
	// maxBackupWait is how long one waits for the backup before it.
	maxBackupWait = 5 * time.Second
)

// backup handles GET /v1/backup: a copy of the store as of now, for sluice store
// restore. One is sent at a time: each takes its own room on the disk.
func (s *server) backup(w http.ResponseWriter, r *http.Request) error {
	free, err := s.backups.take(r.Context())
	if errors.Is(err, errBusy) {
		err := errors.New("another backup is being sent: try again once that has ended")
		return &failure{code: http.StatusServiceUnavailable, err: err, retryAfter: "30"}
	}
	if err != nil {
		return err
	}
	defer free()
	// A backup holds every policy, and the secret that hashes keys in the audit log.
	caller := access.FromContext(r.Context())
	id, err := s.store.Record(r.Context(), store.Entry{Who: caller.Name, From: caller.Address, Action: "backup"})
	if err != nil {
		return err
	}
	outcome := "none sent"
	defer func() { s.settle(r.Context(), id, outcome) }()
	from, size, err := s.store.Backup(r.Context())
	if err != nil {
		return err
	}
	defer from.Close()
	if err := setWriteDeadline(w, maxBackupTime); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	sent, err := io.Copy(w, from)
	if err != nil {
		outcome = fmt.Sprintf("sent %d of %d bytes", sent, size)
		s.log.Warn("backup not sent in whole", "audit", id, "bytes", sent, "of", size, "error", err)
		return nil
	}
	outcome = fmt.Sprintf("sent %d bytes", size)
	s.log.Info("backup sent", "who", access.Who(caller.Name), "from", caller.Address, "audit", id, "bytes", size)
	return nil
}
