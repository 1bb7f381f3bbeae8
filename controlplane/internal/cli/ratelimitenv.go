package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/front"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
)

// ratelimitName is the name under which this program takes the place of envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// NewCommand returns the command tree of a program that was called by this name.
func NewCommand(program string) *cobra.Command {
	if filepath.Base(program) == ratelimitName {
		return newRatelimitCommand()
	}
	return NewRootCommand()
}

func newRatelimitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   ratelimitName,
		Short: "Answer Envoy's rate limit calls in the place of envoyproxy/ratelimit",
		Long: `Answer Envoy's rate limit calls in the place of envoyproxy/ratelimit. This is sluice under
another name: it takes its settings from the environment, as that service does.`,
		Example:       `  RUNTIME_ROOT=/data REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 ratelimit`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return unlessStopped(cmd.Context(), runRatelimit(cmd.Context(), cmd.ErrOrStderr()))
		},
	}
	complete(cmd)
	return cmd
}

// environment reads settings. It notes which it has read, and what is wrong with them.
type environment struct {
	isRead map[string]bool
	errs   []error
}

// text returns a setting. An empty one is as if it were not set.
func (e *environment) text(name, otherwise string) string {
	e.isRead[name] = true
	return cmp.Or(os.Getenv(name), otherwise)
}

// xdsHeaders are headers for the xDS server, among them its credentials.
const xdsHeaders = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"

// fail notes that a setting's value is wrong, and what it would have to be.
func (e *environment) fail(name, right string) {
	value := os.Getenv(name)
	if strings.Contains(value, "@") || name == xdsHeaders {
		value = "…" // it may have a password
	}
	e.errs = append(e.errs, fmt.Errorf("%s=%q is wrong: it must be %s", name, value, right))
}

// isOn returns a setting that is true or false.
func (e *environment) isOn(name string, otherwise bool) bool {
	is, err := strconv.ParseBool(e.text(name, strconv.FormatBool(otherwise)))
	if err != nil {
		e.fail(name, "true or false")
	}
	return is
}

// word returns a setting that is one of several words, in upper or lower case.
func (e *environment) word(name, otherwise string, others ...string) string {
	text := e.text(name, otherwise)
	words := append([]string{otherwise}, others...)
	i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, text) })
	if i < 0 {
		e.fail(name, "one of "+strings.Join(words, ", "))
		return otherwise
	}
	return words[i]
}

// address returns the address of two settings.
func (e *environment) address(host, port, number string) string {
	text := e.text(port, number)
	if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
		e.fail(port, "the number of a port, such as "+number)
	}
	return net.JoinHostPort(e.text(host, "0.0.0.0"), text)
}

// pairs returns a setting that is a list of names with values.
func (e *environment) pairs(name, separator string) map[string]string {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(e.text(name, ""), ",") {
		key, value, ok := strings.Cut(pair, separator)
		if !ok && pair != "" {
			e.fail(name, "NAME"+separator+"VALUE, more than one with commas between")
		}
		if ok {
			pairs[key] = value
		}
	}
	return pairs
}

// refuse notes a setting with which other limits would hold, and what to do instead.
func (e *environment) refuse(name, instead string) {
	e.errs = append(e.errs, fmt.Errorf("%s=%s is not supported: %s", name, os.Getenv(name), instead))
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

// unused are the settings that are set and not read. One that is false asks for nothing.
func (e *environment) unused() (names []string) {
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		isOfFamily := func(family string) bool { return strings.HasPrefix(name, family) }
		asks := value != "" && value != "0" && value != "false"
		if asks && !e.isRead[name] && slices.ContainsFunc(strings.Fields(families), isOfFamily) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ratelimitSettings are the settings in the words of the rest of this program.
type ratelimitSettings struct {
	log         *slog.Logger
	http, grpc  string // addresses
	prometheus  string // address, empty: no metrics
	metricsPath string
	tls         listenOptions // certificate and key of grpc, and the authorities of its clients
	clientName  string        // that clients' certificates must have; empty: any
	redis       redisstore.Options
	calls       callOptions
}

// readSettings reads the environment. An error says all that is wrong.
func readSettings(stderr io.Writer) (s ratelimitSettings, err error) {
	e := environment{isRead: map[string]bool{}}
	e.checkSupported()
	s.log = e.logger(stderr)
	s.http, s.grpc = e.address("HOST", "PORT", "8080"), e.address("GRPC_HOST", "GRPC_PORT", "8081")
	if e.isOn("USE_PROMETHEUS", false) {
		s.prometheus, s.metricsPath = e.text("PROMETHEUS_ADDR", ":9090"), e.text("PROMETHEUS_PATH", "/metrics")
		if !strings.HasPrefix(s.metricsPath, "/") {
			e.fail("PROMETHEUS_PATH", "a path, such as /metrics")
		}
	}
	if e.isOn("GRPC_SERVER_USE_TLS", false) {
		s.tls.tlsCert, s.tls.tlsKey = e.text("GRPC_SERVER_TLS_CERT", ""), e.text("GRPC_SERVER_TLS_KEY", "")
		if s.tls.tlsCert == "" || s.tls.tlsKey == "" {
			e.fail("GRPC_SERVER_USE_TLS", "false without GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
		}
		s.tls.xdsClientCA = e.text("GRPC_CLIENT_TLS_CACERT", "")
	}
	if s.tls.xdsClientCA != "" {
		s.clientName = e.text("GRPC_CLIENT_TLS_SAN", "")
	}
	s.redis, s.calls = e.redis(), e.calls()
	if names := e.unused(); len(names) > 0 && len(e.errs) == 0 {
		s.log.Warn("settings that have no effect here", "names", strings.Join(names, " "))
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

// noLogin is the login of a setting that is empty.
var noLogin = url.UserPassword("", "")

// login returns the user and password of a setting that is PASSWORD or USER:PASSWORD.
func (e *environment) login(name string) *url.Userinfo {
	text := e.text(name, "")
	user, password, hasUser := strings.Cut(text, ":")
	if !hasUser {
		user, password = "", text
	}
	return url.UserPassword(user, password)
}

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
	if err := redisstore.Check(o.URL); err != nil {
		e.errs = append(e.errs, fmt.Errorf("REDIS_URL, as the URL of a store: %w", err))
	}
	return o
}

// calls says how calls are answered, and where their configuration is.
func (e *environment) calls() callOptions {
	o := callOptions{answers: e.answers()}
	startAnyway, merge := e.isOn("FORCE_START_WITHOUT_INITIAL_CONFIG", false), e.isOn("MERGE_DOMAIN_CONFIG", false)
	if e.word("CONFIG_TYPE", "FILE", "GRPC_XDS_SOTW") == "FILE" {
		o.files = e.files()
		o.files.Merge, o.files.StartAnyway = merge, startAnyway
	} else {
		o.xds = e.xds()
		o.xds.Merge, o.waits = merge, !startAnyway
	}
	return o
}

func (e *environment) answers() front.Options {
	o := front.Options{
		Prefix: e.text("CACHE_KEY_PREFIX", ""), Shadow: e.isOn("SHADOW_MODE", false), Quota: e.isOn("QUOTA_MODE", false),
		Metadata:    e.isOn("RESPONSE_DYNAMIC_METADATA", false),
		NeedDomains: e.isOn("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false),
	}
	ratio, err := strconv.ParseFloat(e.text("NEAR_LIMIT_RATIO", fmt.Sprint(defaultNearRatio)), 32)
	if isInRange := ratio >= 0 && ratio <= 1; err != nil || !isInRange { // NaN is in none
		e.fail("NEAR_LIMIT_RATIO", "a number from 0 to 1, such as 0.8")
	}
	o.NearRatio = float32(ratio)
	if e.isOn("LIMIT_RESPONSE_HEADERS_ENABLED", false) {
		names := strings.Split(defaultHeaders, ",")
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
		Node:         e.text("CONFIG_GRPC_XDS_NODE_ID", defaultXDSNode),
		NodeMetadata: e.pairs("CONFIG_GRPC_XDS_NODE_METADATA", "="),
		Headers:      e.pairs(xdsHeaders, ":"),
	}
	if !e.isOn("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
		return o
	}
	const ca, cert, key = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	config, err := clientTLS(ca, e.text(ca, ""), cert, e.text(cert, ""), e.text(key, ""))
	if err != nil {
		e.errs = append(e.errs, err)
		return o
	}
	config.ServerName = e.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "")
	o.Credentials = credentials.NewTLS(config)
	return o
}

func runRatelimit(ctx context.Context, stderr io.Writer) error {
	settings, err := readSettings(stderr)
	if err != nil {
		return usageError(err, "the settings are those of envoyproxy/ratelimit")
	}
	guard, err := settings.guard()
	if err != nil {
		return err
	}
	s := &servers{log: settings.log, guard: guard, proxies: "grpc"}
	s.quotas, err = settings.openStore(ctx)
	if err != nil {
		return err
	}
	return settings.serve(ctx, s)
}

// serve listens once there is a configuration, so that proxies call another process until then.
func (r *ratelimitSettings) serve(ctx context.Context, s *servers) error {
	err := s.openCalls(ctx, &r.calls)
	if err == nil {
		err = s.listen(listenAddress{"PORT", r.http}, listenAddress{"GRPC_PORT", r.grpc})
	}
	if err != nil {
		s.quotas.close(s.log)
		return err
	}
	defer s.close()
	s.handler = s.callHandler()
	if r.prometheus != "" {
		web, err := r.serveMetrics(s)
		if err != nil {
			return err
		}
		defer func() { _ = web.Close() }()
	}
	return s.run(ctx)
}

// guard reads the files of TLS. HTTP takes any caller, as with envoyproxy/ratelimit.
func (r *ratelimitSettings) guard() (guard, error) {
	files := watchedFiles{log: r.log}
	pair := watch(&files, "GRPC_SERVER_TLS_CERT", r.tls.readCertificate, r.tls.tlsCert, r.tls.tlsKey)
	g := guard{proxyCAs: files.authorities("GRPC_CLIENT_TLS_CACERT", r.tls.xdsClientCA)}
	if pair != nil {
		g.xds = serverTLS(pair, g.proxyCAs, tls.RequireAndVerifyClientCert, "h2")
	}
	return g, files.err
}

func (r *ratelimitSettings) openStore(ctx context.Context) (quotas, error) {
	r.redis.Log = r.log
	store, err := redisstore.Open(ctx, r.redis)
	if err != nil {
		return quotas{}, withHint(fmt.Errorf("open REDIS_URL: %w", err),
			"REDIS_SOCKET_TYPE, REDIS_TYPE, REDIS_URL, REDIS_AUTH and REDIS_TLS say which Redis")
	}
	q, err := newQuotas(ctx, quotaservice.Options{Log: r.log, Store: store, SecretWait: quotaservice.SecretWait}, nil)
	q.callsAlone = true
	if r.clientName != "" {
		q.allow = func(p quotaservice.Peer, _ string) error { return p.Certificate.VerifyHostname(r.clientName) }
	}
	return q, err
}

// serveMetrics serves Prometheus at an address of its own.
func (r *ratelimitSettings) serveMetrics(s *servers) (*http.Server, error) {
	l, err := listen("PROMETHEUS_ADDR", r.prometheus)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(s.collectors()...)
	mux := http.NewServeMux()
	mux.Handle(r.metricsPath, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(l) }() // it ends with the process
	return web, nil
}
