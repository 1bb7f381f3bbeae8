// Package ratelimitenv reads the settings of envoyproxy/ratelimit from the environment, so that
// sluice takes its place.
//
// Its invariant: a setting with which other limits would hold is an error, never ignored. The package
// connects to nothing and serves nothing.
package ratelimitenv

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/front"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
)

// Defaults of settings that are also flags.
const (
	DefaultNearRatio = 0.8
	DefaultNode      = "default"
	DefaultHeaders   = "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset"
)

// Settings are the settings in the words of the rest of this program.
type Settings struct {
	Log         *slog.Logger
	HTTP, GRPC  string // addresses
	Prometheus  string // address, empty: no metrics
	MetricsPath string
	Cert, Key   string // files, of GRPC; empty: no TLS
	ClientCA    string // file with the authorities of its clients; empty: they need no certificate
	ClientName  string // that clients' certificates must have; empty: any
	Redis       redisstore.Options
	Calls       serving.CallOptions
}

// Read reads the environment. An error says all that is wrong.
func Read(stderr io.Writer) (s Settings, err error) {
	e := environment{isRead: map[string]bool{}}
	e.checkSupported()
	s.Log = e.logger(stderr)
	s.HTTP, s.GRPC = e.address("HOST", "PORT", "8080"), e.address("GRPC_HOST", "GRPC_PORT", "8081")
	if e.isOn("USE_PROMETHEUS", false) {
		s.Prometheus, s.MetricsPath = e.text("PROMETHEUS_ADDR", ":9090"), e.text("PROMETHEUS_PATH", "/metrics")
		if !strings.HasPrefix(s.MetricsPath, "/") {
			e.fail("PROMETHEUS_PATH", "a path, such as /metrics")
		}
	}
	if e.isOn("GRPC_SERVER_USE_TLS", false) {
		s.Cert, s.Key = e.text("GRPC_SERVER_TLS_CERT", ""), e.text("GRPC_SERVER_TLS_KEY", "")
		if s.Cert == "" || s.Key == "" {
			e.fail("GRPC_SERVER_USE_TLS", "false without GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
		}
		s.ClientCA = e.text("GRPC_CLIENT_TLS_CACERT", "")
	}
	if s.ClientCA != "" {
		s.ClientName = e.text("GRPC_CLIENT_TLS_SAN", "")
	}
	s.Redis, s.Calls = e.redis(), e.calls()
	if names := e.unused(); len(names) > 0 && len(e.errs) == 0 {
		s.Log.Warn("settings that have no effect here", "names", strings.Join(names, " "))
	}
	return s, errors.Join(e.errs...)
}

// levels are the levels of logs by their names. There is none above error.
var levels = map[string]slog.Level{
	"panic": slog.LevelError, "fatal": slog.LevelError, "error": slog.LevelError,
	"warn": slog.LevelWarn, "warning": slog.LevelWarn, "info": slog.LevelInfo,
	"debug": slog.LevelDebug, "trace": slog.LevelDebug,
}

func (e *environment) logger(w io.Writer) *slog.Logger {
	level := e.word("LOG_LEVEL", "warn", "warning", "panic", "fatal", "error", "info", "debug", "trace")
	o := slog.HandlerOptions{Level: levels[level]}
	if e.word("LOG_FORMAT", "text", "json") == "json" {
		return slog.New(slog.NewJSONHandler(w, &o))
	}
	return slog.New(slog.NewTextHandler(w, &o))
}

// checkSupported refuses what would change decisions and is not there.
func (e *environment) checkSupported() {
	if e.word("BACKEND_TYPE", "redis", "memcache") != "redis" {
		e.refuse("BACKEND_TYPE", "counters are in Redis or Valkey: unset it, and set REDIS_URL")
	}
	if e.isOn("REDIS_PERSECOND", false) {
		e.refuse("REDIS_PERSECOND", "one Redis has the counters of all units: unset it")
	}
	if e.isOn("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false) {
		e.refuse("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "write sluice: {count_denied: false} into the configuration "+
			"of each domain instead: a call that is denied counts nowhere")
	}
	if e.text("GRPC_UDS", "") != "" {
		e.refuse("GRPC_UDS", "calls come over TCP: set GRPC_HOST and GRPC_PORT")
	}
}

// families are what the names of other settings of envoyproxy/ratelimit begin with. They have no
// effect if they are not read: on statsd, tracing, connections to Redis, memcached, and the memory of
// keys over their limit, which is always there.
const families = `DEBUG_HOST DEBUG_PORT
	GRPC_MAX_CONNECTION_AGE GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_ CONFIG_GRPC_XDS_ XDS_CLIENT_
	USE_STATSD USE_DOG_STATSD STATSD_ STATS_FLUSH_INTERVAL EXTRA_TAGS DISABLE_STATS PROMETHEUS_ TRACING_ MEMCACHE_
	EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES REDIS_POOL_ REDIS_PIPELINE_ REDIS_CLUSTER_PIPELINE_
	REDIS_HEALTH_CHECK_ REDIS_TIMEOUT REDIS_STARTUP_ REDIS_PERSECOND_ REDIS_SENTINEL_AUTH REDIS_TLS_ LIMIT_`

// xdsHeaders are headers for the xDS server, among them its credentials.
const xdsHeaders = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"

func (e *environment) redis() (o redisstore.Options) {
	const defaultSocket = "/var/run/nutcracker/ratelimit.sock"
	scheme, query := "redis", url.Values{}
	if e.isOn("REDIS_TLS", false) {
		scheme = "rediss"
		for name, setting := range map[string]string{
			"ca": "REDIS_TLS_CACERT", "cert": "REDIS_TLS_CLIENT_CERT", "key": "REDIS_TLS_CLIENT_KEY",
		} {
			if file := e.text(setting, ""); file != "" {
				query.Set(name, file)
			}
		}
		o.AnyName = e.isOn("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false)
	}
	at, path := e.text("REDIS_URL", defaultSocket), ""
	kind, network := e.word("REDIS_TYPE", "SINGLE", "SENTINEL", "CLUSTER"), e.word("REDIS_SOCKET_TYPE", "unix", "tcp")
	switch {
	case kind == "CLUSTER":
		scheme += "+cluster"
	case kind == "SENTINEL":
		scheme += "+sentinel"
		path, at, _ = strings.Cut(at, ",")
		if at == "" {
			e.fail("REDIS_URL", "MASTER,HOST:PORT,… with REDIS_TYPE=SENTINEL")
		}
		o.Sentinel = e.login("REDIS_SENTINEL_AUTH")
	case network == "unix":
		if !filepath.IsAbs(at) {
			e.fail("REDIS_URL", "the path of a socket, or HOST:PORT with REDIS_SOCKET_TYPE=tcp")
		}
		o.Socket, at = at, "localhost"
	default:
		at = strings.TrimPrefix(at, "redis://") // with which a user, a password or a database may come
	}
	if login := e.login("REDIS_AUTH"); *login != *noLogin {
		at = login.String() + "@" + at
	}
	o.URL = scheme + "://" + at + "/" + url.PathEscape(path)
	if len(query) > 0 {
		o.URL += "?" + query.Encode()
	}
	if err := redisstore.CheckURL(o.URL); err != nil {
		e.errs = append(e.errs, fmt.Errorf("REDIS_URL, as the URL of a store: %w", err))
	}
	return o
}

// calls says how calls are answered, and where their configuration is.
func (e *environment) calls() serving.CallOptions {
	o := serving.CallOptions{Answers: e.answers()}
	startAnyway, merge := e.isOn("FORCE_START_WITHOUT_INITIAL_CONFIG", false), e.isOn("MERGE_DOMAIN_CONFIG", false)
	if e.word("CONFIG_TYPE", "FILE", "GRPC_XDS_SOTW") == "FILE" {
		o.Files = e.files()
		o.Files.Merge, o.Files.StartAnyway = merge, startAnyway
	} else {
		o.XDS = e.xds()
		o.XDS.Merge, o.Waits = merge, !startAnyway
	}
	return o
}

func (e *environment) answers() front.Options {
	o := front.Options{
		Prefix: e.text("CACHE_KEY_PREFIX", ""), Shadow: e.isOn("SHADOW_MODE", false), Quota: e.isOn("QUOTA_MODE", false),
		Metadata:    e.isOn("RESPONSE_DYNAMIC_METADATA", false),
		NeedDomains: e.isOn("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false),
	}
	ratio, err := strconv.ParseFloat(e.text("NEAR_LIMIT_RATIO", fmt.Sprint(DefaultNearRatio)), 32)
	if isInRange := ratio >= 0 && ratio <= 1; err != nil || !isInRange { // NaN is in none
		e.fail("NEAR_LIMIT_RATIO", "a number from 0 to 1, such as 0.8")
	}
	o.NearRatio = float32(ratio)
	if e.isOn("LIMIT_RESPONSE_HEADERS_ENABLED", false) {
		names := strings.Split(DefaultHeaders, ",")
		for i, setting := range []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"} {
			o.Headers[i] = e.text(setting, names[i])
		}
	}
	return o
}

// files are the files of a folder whose names begin with a word, or those of a folder of that name.
func (e *environment) files() front.FileOptions {
	folder := filepath.Join(e.text("RUNTIME_ROOT", "/srv/runtime_data/current"), e.text("RUNTIME_SUBDIRECTORY", ""))
	app := e.text("RUNTIME_APPDIRECTORY", "config")
	o := front.FileOptions{Paths: []string{folder}, Prefix: app + "."}
	if !e.isOn("RUNTIME_WATCH_ROOT", true) {
		o.Paths, o.Prefix = []string{filepath.Join(folder, app)}, ""
	}
	o.IgnoreDotFiles = e.isOn("RUNTIME_IGNOREDOTFILES", false)
	return o
}

func (e *environment) xds() front.XDSOptions {
	o := front.XDSOptions{
		Target:       e.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
		Node:         e.text("CONFIG_GRPC_XDS_NODE_ID", DefaultNode),
		NodeMetadata: e.pairs("CONFIG_GRPC_XDS_NODE_METADATA", "="),
		Headers:      e.pairs(xdsHeaders, ":"),
	}
	if !e.isOn("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
		return o
	}
	const ca, cert, key = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	config, err := flagfile.ClientTLS(ca, e.text(ca, ""), cert, e.text(cert, ""), e.text(key, ""))
	if err != nil {
		e.errs = append(e.errs, err)
		return o
	}
	config.ServerName = e.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "")
	o.Credentials = credentials.NewTLS(config)
	return o
}
