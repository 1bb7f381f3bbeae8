package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

var (
	errNoAnswer = errors.New("the quota store did not answer in time")
	errClosed   = errors.New("the quota store is closed")
	errAnswer   = errors.New("read the quota store's answer: it is not the script's")
)

// advice says what to do about an error, by the word that the server's message
// begins with.
var advice = map[string]string{
	"OOM":         "its memory is full: raise maxmemory",
	"READONLY":    "it is a replica, which takes no writes: its address is dialed again, and must lead to the master",
	"LOADING":     "it is loading its data",
	"MOVED":       "it is a node of a Cluster: use redis+cluster://",
	"ASK":         "a slot is moving, and its nodes do not agree",
	"CLUSTERDOWN": "its Cluster lacks nodes",
	"TRYAGAIN":    "a slot is moving",
	"MASTERDOWN":  "it is a replica without its master",
	"NOREPLICAS":  "it has fewer replicas than min-replicas-to-write",
	"MISCONF":     "it could not save its data to disk and takes no writes",
	"BUSY":        "it is busy with a long script",
	"NOAUTH":      "it wants a password",
	"WRONGPASS":   "user or password is wrong",
	"NOPERM": "the user may not do that: allow eval, evalsha, time, get, set, incrby, zadd, zremrangebyscore, zcard " +
		"and pexpire on the prefix's keys, and info; in a Cluster also cluster slots and cluster shards",
	"WRONGTYPE": "something else is under a key of the store: give it a prefix of its own",
}

// explain says what an error of the client means. It leaves out what was sent.
func explain(err error) error {
	var refused *rueidis.RedisError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return errNoAnswer
	case errors.Is(err, rueidis.ErrClosing):
		return errClosed
	case errors.Is(err, io.EOF):
		return errors.New("the quota store ended the connection")
	case errors.As(err, &refused):
		return refusal(refused.Error())
	}
	return fmt.Errorf("reach the quota store: %w", err)
}

const maxMessage = 120

// atLine is what Redis 6.2 puts before a script's error: where it happened.
var atLine = regexp.MustCompile(`^Error running script \(.*?\): (@user_script: ?\d+: )+-?`)

// refusal makes an error of a server's message. A message that quotes the command
// is cut before the quote.
func refusal(message string) error {
	message = atLine.ReplaceAllString(message, "")
	code, _, _ := strings.Cut(message, " ")
	if what, ok := advice[code]; ok {
		return fmt.Errorf("the quota store's server refused with %s: %s", code, what)
	}
	if i := strings.IndexAny(message, "'\"`"); i >= 0 {
		message = message[:i]
	}
	return fmt.Errorf("the quota store's server refused: %s", printable.Cut(printable.Text(message), maxMessage))
}
