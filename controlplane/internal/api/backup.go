package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
)

const (
	// maxBackupTime is how long a caller may take to receive a backup.
	maxBackupTime = 30 * time.Minute
	// maxBackupWait is how long one waits for the backup before it.
	maxBackupWait = 5 * time.Second
)

// backup handles GET /v1/backup: a copy of the store as of now, for sluice store
// restore. One is sent at a time: each takes its own room on the disk.
func (s *server) backup(w http.ResponseWriter, r *request) error {
	free, err := s.backups.take(r.Context())
	if errors.Is(err, errBusy) {
		return later("30", errors.New("another backup is being sent: try again once that has ended"))
	}
	if err != nil {
		return err
	}
	defer free()
	// A backup holds every policy, and the secret that hashes keys in the audit log.
	entry := entryOf(r.Context(), "backup")
	id, err := s.Store.Record(r.Context(), entry)
	if err != nil {
		return err
	}
	outcome := "none sent"
	defer func() { s.setOutcome(r.Context(), id, outcome) }()
	from, size, err := s.Store.Backup(r.Context())
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
		s.Log.Warn("backup not sent in whole", "audit", id, "bytes", sent, "of", size, "error", err)
		return nil
	}
	outcome = fmt.Sprintf("sent %d bytes", size)
	s.Log.Info("backup sent", "who", access.Who(entry.Who), "from", entry.From, "audit", id, "bytes", size)
	return nil
}
