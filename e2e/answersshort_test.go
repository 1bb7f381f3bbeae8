//go:build !long

package e2e

import "time"

const inFlightFor = 12 * time.Second
