package buildtest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// ModelAnswer is an answer of a model's API, and what is to be read of it.
type ModelAnswer struct {
	Name, ContentType, Body string

	Input, Output           int64
	InputKnown, OutputKnown bool
	Total                   int64 // where that is known and the parts are not
	TextEvents, TextBytes   int64

	Model                   string // empty if the answer does not name it
	IsBedrock               bool   // its name says so
	CacheRead, CacheWritten int64
}

// ModelAnswers are those on which the filter's scanner is tested.
func ModelAnswers(t testing.TB) (list []ModelAnswer) {
	all, err := txtar.ParseFile(filepath.Join(Root(), "filter/internal/usage/testdata/answers.txtar"))
	require.NoError(t, err)
	for _, f := range all.Files {
		head := strings.Split(f.Name, " | ")
		a := ModelAnswer{Name: head[0], ContentType: head[1], Body: string(f.Data)}
		a.IsBedrock = strings.HasPrefix(a.Name, "Converse") || strings.Contains(a.Name, "Bedrock")
		counts := strings.Fields(head[2])
		said := strings.ReplaceAll(strings.Join(counts[:2], " "), "?", "") + " " + head[3]
		_, err := fmt.Sscan(said, &a.Input, &a.Output, &a.TextEvents, &a.TextBytes)
		require.NoError(t, err)
		a.InputKnown, a.OutputKnown = !strings.HasSuffix(counts[0], "?"), !strings.HasSuffix(counts[1], "?")
		if len(counts) > 2 {
			a.Total, err = strconv.ParseInt(counts[2], 10, 64)
			require.NoError(t, err)
		}
		if len(head) > 4 {
			_, err := fmt.Sscan(head[4], &a.Model, &a.CacheRead, &a.CacheWritten)
			require.NoError(t, err)
			a.Model = strings.TrimPrefix(a.Model, "-")
		}
		switch a.ContentType {
		case "application/json":
			a.Body = strings.TrimSuffix(a.Body, "\n")
		case "application/vnd.amazon.eventstream":
			frames, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Body))
			require.NoError(t, err)
			a.Body = string(frames)
		}
		list = append(list, a)
	}
	require.Greater(t, len(list), 60)
	return list
}

// Frame writes a frame of AWS' event stream.
func Frame(event, document string) string {
	var headers []byte
	for _, h := range [][2]string{
		{":event-type", event},
		{":content-type", "application/json"},
		{":message-type", "event"},
	} {
		headers = append(headers, byte(len(h[0])))
		headers = append(headers, h[0]...)
		headers = append(headers, 7)
		headers = binary.BigEndian.AppendUint16(headers, uint16(len(h[1])))
		headers = append(headers, h[1]...)
	}
	return SealedFrame(uint32(16+len(headers)+len(document)), uint32(len(headers)), string(headers)+document)
}

// InvokedFrame writes a frame of InvokeModelWithResponseStream.
func InvokedFrame(event string) string {
	return Frame("chunk", `{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(event))+`","p":"abcdefgh"}`)
}

// SealedFrame writes lengths, content and checksums of a frame.
func SealedFrame(all, headers uint32, content string) string {
	f := binary.BigEndian.AppendUint32(nil, all)
	f = binary.BigEndian.AppendUint32(f, headers)
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	f = append(f, content...)
	return string(binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f)))
}

// Archives calls each with the files of every archive whose name fits a pattern. What it sets
// the data of a file to is what the archive must say, or is written into it by update.
func Archives(t testing.TB, pattern string, update bool, each func(files []txtar.File)) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		all, err := txtar.ParseFile(name)
		require.NoError(t, err)
		want := txtar.Format(all)
		each(all.Files)
		got := txtar.Format(all)
		if update {
			require.NoError(t, os.WriteFile(name, got, 0o600))
		} else {
			require.Equal(t, string(want), string(got), name)
		}
	}
}
