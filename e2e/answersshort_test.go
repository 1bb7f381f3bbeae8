//go:build !long

package e2e

import "time"

const inFlightFor = 8 * time.Second
