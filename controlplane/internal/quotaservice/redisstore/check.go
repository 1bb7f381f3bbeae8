package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// The oldest servers that are supported.
var (
	oldestRedis  = [2]int{6, 0}
	oldestValkey = [2]int{7, 2}
	// oldestStrict is the first Redis that heeds min-replicas-to-write in scripts, too.
	oldestStrict = [2]int{6, 2}
)

// checkServers refuses servers that cannot keep the promise: too old, or set to drop
// values when their memory is full. It logs a warning for a server that does not say.
func (s *Store) checkServers(ctx context.Context, want form, log *slog.Logger) error {
	for address, node := range s.client.Nodes() {
		about, err := info(ctx, node)
		if refused := (*rueidis.RedisError)(nil); errors.As(err, &refused) {
			log.Warn("cannot check a server of the quota store: allow INFO, "+
				"or make sure that its version is supported and its maxmemory-policy is noeviction",
				"server", address, "error", explain(err))
			continue
		}
		if err != nil && want == cluster {
			log.Warn("a server of the quota store's Cluster does not answer", "server", address, "error", explain(err))
			continue
		}
		if err != nil {
			return explain(err)
		}
		if err := about.fit(want); err != nil {
			return fmt.Errorf("%s %w", address, err)
		}
		if about["maxmemory_policy"] == "" {
			log.Warn("a server of the quota store does not say its maxmemory-policy: it must be noeviction", "server", address)
		}
	}
	return nil
}

// about is what a server's INFO says.
type about map[string]string

func info(ctx context.Context, node rueidis.Client) (about, error) {
	text, err := node.Do(ctx, node.B().Info().Build()).ToString()
	if err != nil {
		return nil, err
	}
	found := about{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found, nil
}

// fit returns what is wrong with the server for a store of that form.
func (a about) fit(want form) error {
	server := "Redis " + a["redis_version"]
	isOld := isOlder(a["redis_version"], oldestRedis)
	if version := a["valkey_version"]; version != "" {
		server = "Valkey " + version
		isOld = isOlder(version, oldestValkey)
	}
	if isOld {
		return fmt.Errorf("is %s: the quota store takes Redis 6.0, Valkey 7.2 or newer", server)
	}
	if a["min_slaves_good_slaves"] != "" && isOlder(a["redis_version"], oldestStrict) {
		return fmt.Errorf("is %s, which heeds min-replicas-to-write in no script: take Redis 6.2 or newer, or set it to 0",
			server)
	}
	policy := a["maxmemory_policy"]
	if limit := a["maxmemory"]; policy != "" && policy != "noeviction" && limit != "0" {
		return fmt.Errorf("drops values when its memory is full, which would lift limits: "+
			"set maxmemory-policy to noeviction (it is %s), or maxmemory to 0", policy)
	}
	switch mode := a["redis_mode"] + a["server_mode"]; {
	case mode == "cluster" && want != cluster:
		return errors.New("is a node of a Cluster: use redis+cluster://")
	case mode == "sentinel":
		return errors.New("is a Sentinel: use redis+sentinel://HOST:PORT,…/MASTER")
	case mode == "standalone" && want == cluster:
		return errors.New("is no node of a Cluster: use redis://")
	}
	return nil
}

// isOlder reports whether a version such as 7.2.4 is older; one that cannot be read is not.
func isOlder(version string, than [2]int) bool {
	var is [2]int
	n, _ := fmt.Sscanf(version, "%d.%d", &is[0], &is[1])
	return n == 2 && slices.Compare(is[:], than[:]) < 0
}
