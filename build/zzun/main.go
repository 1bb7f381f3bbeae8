package main

import (
	"os"
	"os/exec"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

func main() {
	root, out := os.Args[1], os.Args[2]
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-o", out+".plain", "./filter")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil { panic(err) }
	b, err := os.ReadFile(out + ".plain")
	if err != nil { panic(err) }
	if b, err = graft.Apply(b); err != nil { panic(err) }
	os.WriteFile(out, b, 0o644)
}
