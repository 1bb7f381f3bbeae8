package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/envoy/wasmimage"
)

// imagePushOptions are the flags of image push.
type imagePushOptions struct {
	form         string
	wasm         string
	ca           string
	username     string
	passwordFile string
	output       output
}

func (o *imagePushOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	addWordFlag(cmd, &o.form, "form", "", string(wasmimage.Compat),
		"`FORM` of the image: compat, which every registry accepts, or artifact",
		string(wasmimage.Compat), string(wasmimage.Artifact))
	f.StringVar(&o.ca, "ca", "", "`FILE` with the certificate authorities of the registry (default: the system's)")
	f.StringVar(&o.username, "username", "", "`NAME` at the registry (default: what docker login stored)")
	f.StringVar(&o.passwordFile, "password-file", "", "`FILE` with its password")
	addWasmFlag(cmd, &o.wasm, "")
	o.output.AddFlags(cmd)
}

func newImagePushCommand() *cobra.Command {
	var o imagePushOptions
	cmd := &cobra.Command{
		Use:   "push REGISTRY/IMAGE:TAG",
		Short: "Push the filter as an image and print its digest",
		Long: `Push the filter inside this program to a registry, from which Istio and Envoy Gateway
fetch it. The image depends only on the filter: the same filter has the same digest.

Without --username it uses the credentials that docker login, podman login or a
credential helper stored.`,
		Example: `  sluice image push registry.example.com/sluice:1.0.0
  sluice image push registry.example.com/sluice:1.0.0 --ca ca.pem --username ci --password-file password`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return imagePush(cmd, args[0], &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

// pushed is what image push prints as JSON.
type pushed struct {
	Image  string `json:"image"`
	Digest string `json:"digest"`
	URL    string `json:"url"` // for render
}

func imagePush(cmd *cobra.Command, to string, o *imagePushOptions) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return usageError(fmt.Errorf("%s is not REGISTRY/IMAGE:TAG", printable.Text(to)),
			"give all three parts, such as registry.example.com/sluice:1.0.0")
	}
	if (o.username == "") != (o.passwordFile == "") {
		return usageError(errors.New("--username and --password-file belong together"), "give both or none")
	}
	wasm, err := readFilter(o.wasm)
	if err != nil {
		return err
	}
	img, err := wasmimage.New(wasmimage.Form(o.form), wasm)
	if err != nil {
		return usageError(err, "--form says which")
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	with, err := o.remote(cmd.Context())
	if err != nil {
		return err
	}
	if err := remote.Write(tag, img, with...); err != nil {
		return pushHint(fmt.Errorf("push %s: %w", tag, err))
	}
	done := pushed{tag.String(), digest.String(), "oci://" + tag.String() + "@" + digest.String()}
	return o.output.print(cmd, done, func(b *strings.Builder) {
		fmt.Fprintf(b, "pushed %s\ndigest %s\nfor render: --url %s\n", done.Image, done.Digest, done.URL)
	})
}

// remote says how to talk to the registry: with TLS unless it is on this machine.
func (o *imagePushOptions) remote(ctx context.Context) ([]remote.Option, error) {
	options := []remote.Option{remote.WithContext(ctx), remote.WithUserAgent("sluice")}
	if o.username == "" {
		options = append(options, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	} else {
		password, err := input.File(o.passwordFile, flagfile.MaxBytes)
		if err != nil {
			return nil, fmt.Errorf("read password: %w", err)
		}
		secret := strings.TrimRight(string(password), "\r\n")
		options = append(options, remote.WithAuth(&authn.Basic{Username: o.username, Password: secret}))
	}
	config, err := flagfile.ClientTLS("--ca", o.ca, "", "", "")
	if err != nil {
		return nil, err
	}
	connect := remote.DefaultTransport.(*http.Transport).Clone()
	connect.TLSClientConfig = config
	return append(options, remote.WithTransport(wasmimage.OnlyTLS{Next: connect, Loopback: true})), nil
}

// pushHint adds advice to a registry's error.
func pushHint(err error) error {
	var rejected *transport.Error
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &rejected) && isDenied(rejected.StatusCode):
		return withHint(err, "give --username and --password-file, or docker login first")
	case errors.As(err, &unknown):
		return withHint(err, "give --ca with the registry's authority")
	case strings.Contains(err.Error(), "wants plain HTTP") || strings.Contains(err.Error(), "server gave HTTP response"):
		return withHint(err, "a registry without TLS has to be on this machine")
	}
	return err
}

func isDenied(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}
