//go:build !linux

package main

import (
	"errors"
	"syscall"
	"time"
)

var errNotLinux = errors.New("measure: only on Linux")

func cpuTime(int) (time.Duration, error) { return 0, errNotLinux }

func processor() (string, error) { return "", errNotLinux }

func machineTime() (time.Duration, error) { return 0, errNotLinux }

func cores() ([]int, error) { return nil, errNotLinux }

func pin(int, ...int) error { return errNotLinux }

func dieWithParent() *syscall.SysProcAttr { return nil }
