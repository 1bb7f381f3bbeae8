package cli

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const reportSecretFile = "report-secret"

var isReportSecret = regexp.MustCompile(`^[0-9a-f]{64}$`)

// reportSecret reads the secret under which proxies hash the keys that they report, or
// makes one. It must outlive serve, or the same key would have another hash.
func reportSecret(dir string) (string, error) {
	file := filepath.Join(dir, reportSecretFile)
	text, err := input.File(file, policy.ReportSecretBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeReportSecret(dir, file)
	case err != nil:
		return "", fmt.Errorf("read the secret of reported keys: %w", err)
	case !isReportSecret.Match(text):
		return "", withHint(fmt.Errorf("%s is not 64 hexadecimal digits", file), "remove it: the next start makes another, and reported keys get other hashes")
	}
	return string(text), nil
}

// makeReportSecret writes the whole file under another name first, so that a serve
// that is killed leaves no half of it.
func makeReportSecret(dir, file string) (secret string, err error) {
	random := make([]byte, policy.ReportSecretBytes/2)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("make the secret of reported keys: %w", err)
	}
	f, err := os.CreateTemp(dir, reportSecretFile+"-*") // which nobody else may read
	if err != nil {
		return "", fmt.Errorf("make the secret of reported keys: %w", err)
	}
	secret = hex.EncodeToString(random)
	_, err = f.WriteString(secret)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make the secret of reported keys: %w", err), os.Remove(f.Name()))
	}
	return secret, nil
}
