//go:build !wasip1

package host

import "unsafe"

// Outside wasm there is no proxy to call: these let the package build for vet
// and for tests of what needs none.

const noProxy = "this build has no proxy: build with GOOS=wasip1 GOARCH=wasm"

func importNow(unsafe.Pointer) uint32 { panic(noProxy) }

func importHeader(uint32, unsafe.Pointer, uint32, unsafe.Pointer, unsafe.Pointer) uint32 {
	panic(noProxy)
}

func importHeaders(uint32, unsafe.Pointer, unsafe.Pointer) uint32 { panic(noProxy) }

func importAddHeader(uint32, unsafe.Pointer, uint32, unsafe.Pointer, uint32) uint32 {
	panic(noProxy)
}

func importProperty(unsafe.Pointer, uint32, unsafe.Pointer, unsafe.Pointer) uint32 { panic(noProxy) }

func importSetProperty(unsafe.Pointer, uint32, unsafe.Pointer, uint32) uint32 { panic(noProxy) }

func importGetShared(unsafe.Pointer, uint32, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer) uint32 {
	panic(noProxy)
}

func importSetShared(unsafe.Pointer, uint32, unsafe.Pointer, uint32, uint32) uint32 { panic(noProxy) }

func importSendLocalResponse(uint32, unsafe.Pointer, uint32, unsafe.Pointer, uint32, unsafe.Pointer, uint32, int32) uint32 {
	panic(noProxy)
}

func importDefineMetric(uint32, unsafe.Pointer, uint32, unsafe.Pointer) uint32 { panic(noProxy) }

func importGetMetric(uint32, unsafe.Pointer) uint32 { panic(noProxy) }

func importIncrementMetric(uint32, int64) uint32 { panic(noProxy) }

func importRecordMetric(uint32, uint64) uint32 { panic(noProxy) }

func importRandom(unsafe.Pointer, uint32) uint32 { panic(noProxy) }

func importClock(uint32, uint64, unsafe.Pointer) uint32 { panic(noProxy) }

func importGRPCStream(unsafe.Pointer, uint32, unsafe.Pointer, uint32, unsafe.Pointer, uint32, unsafe.Pointer, uint32, unsafe.Pointer) uint32 {
	panic(noProxy)
}

func importGRPCSend(uint32, unsafe.Pointer, uint32, uint32) uint32 { panic(noProxy) }

func importGRPCClose(uint32) uint32 { panic(noProxy) }

func importGRPCCancel(uint32) uint32 { panic(noProxy) }

func importBuffer(uint32, uint32, uint32, unsafe.Pointer, unsafe.Pointer) uint32 { panic(noProxy) }

func importActFor(uint32) uint32 { panic(noProxy) }

func importContinue(uint32) uint32 { panic(noProxy) }

func sdkContextCreate(uint32, uint32) { panic(noProxy) }

func sdkDone(uint32) bool { panic(noProxy) }

func sdkDelete(uint32) { panic(noProxy) }
