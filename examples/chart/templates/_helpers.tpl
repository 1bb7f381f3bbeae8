{{/* Most helpers take (dict "root" $ "name" "serve"): the root, and serve, quota or another part. */}}

{{/* sluice.fullname is the name of a part's resources. */}}
{{- define "sluice.fullname" -}}
{{ .root.Release.Name }}-{{ .name }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* sluice.metadata is the metadata of a part's resource; further labels are "labels". */}}
{{- define "sluice.metadata" -}}
name: {{ include "sluice.fullname" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end }}

{{- define "sluice.tlsSecret" -}}
{{ .Values.tls.secret | default (printf "%s-tls" .Release.Name) }}
{{- end }}

{{/* sluice.flags are the flags of serve or quota, as YAML: those of the values, and those that one takes from the
other. quota lets the same callers and proxies in, and serve uses quota's store. */}}
{{- define "sluice.flags" -}}
{{- $flags := deepCopy (index .root.Values .name).flags }}
{{- $serve := .root.Values.serve.flags }}
{{- $quota := .root.Values.quota.flags }}
{{- if eq .name "quota" }}
{{- range $name, $from := dict "access" "access" "http-client-ca" "http-client-ca" "client-ca" "xds-client-ca" }}
{{- if and (not (hasKey $flags $name)) (hasKey $serve $from) }}
{{- $_ := set $flags $name (index $serve $from) }}
{{- end }}
{{- end }}
{{- else if and (eq .name "serve") .root.Values.quota.enabled (not (hasKey $flags "quota-store")) }}
{{- range $name := list "quota-store" "quota-password-file" "quota-key-file" }}
{{- if hasKey $quota $name }}
{{- $_ := set $flags $name (index $quota $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $flags }}
{{- end }}

{{/* sluice.files are the files in /etc/sluice, as YAML: name to a text or to a key of a Secret or a ConfigMap. A
reference is always a file; of the texts these flags take one. */}}
{{- define "sluice.files" -}}
{{- $ofText := list "access" "client-ca" "http-client-ca" "xds-client-ca" "manage-ca" "node-names" "quota-domains" "ratelimit-xds-ca" "ca" "cert" }}
{{- $files := dict }}
{{- with index .root.Values .name }}
{{- $files = deepCopy (.files | default dict) }}
{{- end }}
{{- if and (eq .name "serve") .root.Values.quota.enabled }}
{{- $files = merge $files .root.Values.quota.files }}
{{- end }}
{{- range $flag, $value := .flags }}
{{- if and (kindIs "map" $value) (ne $flag "ratelimit-config") }}
{{- $_ := set $files $flag $value }}
{{- else if and (has $flag $ofText) (ne (toString $value) "any") }}
{{- $_ := set $files $flag $value }}
{{- end }}
{{- end }}
{{- toYaml $files }}
{{- end }}

{{/* sluice.args are flags as arguments: a file by its path. */}}
{{- define "sluice.args" -}}
{{- range $flag, $value := .flags }}
{{- if eq $flag "ratelimit-config" }}
{{- range $file, $_ := $value }}
- {{ printf "--ratelimit-config=/etc/sluice-ratelimit/%s" $file | quote }}
{{- end }}
{{- else if hasKey $.files $flag }}
- --{{ $flag }}=/etc/sluice/{{ $flag }}
{{- else if kindIs "float64" $value }}
- --{{ $flag }}={{ int64 $value }}
{{- else }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* sluice.sources are the sources of the volume with a part's files. */}}
{{- define "sluice.sources" -}}
{{- range $name, $file := .files }}
{{- if not (kindIs "map" $file) }}
- configMap: {name: {{ include "sluice.fullname" $ }}, items: [{key: {{ $name | quote }}, path: {{ $name | quote }}}]}
{{- else if $file.secret }}
- secret: {name: {{ $file.secret | quote }}, items: [{key: {{ $file.key | quote }}, path: {{ $name | quote }}}]}
{{- else }}
- configMap: {name: {{ $file.configMap | quote }}, items: [{key: {{ $file.key | quote }}, path: {{ $name | quote }}}]}
{{- end }}
{{- end }}
{{- end }}

{{/* sluice.configMap has the files of a part that the values give as text. */}}
{{- define "sluice.configMap" -}}
{{- $texts := dict }}
{{- range $name, $file := .files }}
{{- if not (kindIs "map" $file) }}
{{- $_ := set $texts $name $file }}
{{- end }}
{{- end }}
{{- if $texts }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
data:
  {{- toYaml $texts | nindent 2 }}
{{- end }}
{{- end }}

{{/* sluice.peers are the peers of a NetworkPolicy: namespaces with labels of pods, or networks. */}}
{{- define "sluice.peers" -}}
{{- range . }}
{{- if .cidr }}
- ipBlock: {cidr: {{ .cidr | quote }}}
{{- else }}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .namespace | quote }}}}
  {{- with .labels }}
  podSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* sluice.ports are the ports in the URL of a store, or of HOST:PORT, one a line. Hosts without one have the store's
default. Servers of Sentinel and of a Cluster that the URL does not name have Redis' own. */}}
{{- define "sluice.ports" -}}
{{- $default := ternary "26379" "6379" (contains "+sentinel" .) }}
{{- $hosts := regexReplaceAll "^([a-zA-Z0-9+]+://)?([^@/?]*@)?([^/?#]*).*$" . "${3}" }}
{{- range splitList "," $hosts }}
{{ regexFind ":[0-9]+$" . | trimPrefix ":" | default $default }}
{{- end }}
{{- if regexMatch "^[a-z]+[+]" . }}
6379
{{- end }}
{{- end }}

{{- define "sluice.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* sluice.podSecurity is the user of each pod, who has no rights. */}}
{{- define "sluice.podSecurity" -}}
serviceAccountName: {{ .Release.Name }}-pods
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* sluice.pod is the template of a pod of serve or quota. "args" are those that no value sets, "ports" those of
proxies and of HTTP. */}}
{{- define "sluice.pod" -}}
{{- $part := index .root.Values .name -}}
metadata:
  labels:
    {{- include "sluice.labels" . | nindent 4 }}
    {{- with $part.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $part.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "sluice.podSecurity" .root | nindent 2 }}
  containers:
  - name: {{ .name }}
    image: {{ include "sluice.image" .root | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args:
    - {{ .name }}
    {{- range .args }}
    - {{ . }}
    {{- end }}
    - --tls-cert=/etc/sluice/tls.crt
    - --tls-key=/etc/sluice/tls.key
    {{- include "sluice.args" . | trim | nindent 4 }}
    ports:
    - {name: tls-grpc, containerPort: {{ first .ports }}}
    - {name: https, containerPort: {{ last .ports }}}
    # Not /healthz: a restart mends neither a damaged store nor a silent Redis.
    livenessProbe: {tcpSocket: {port: https}, periodSeconds: 10}
    readinessProbe: {httpGet: {path: /healthz, port: https, scheme: HTTPS}, periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 6}
    securityContext:
      {{- include "sluice.securityContext" . | nindent 6 }}
    resources:
      {{- toYaml $part.resources | nindent 6 }}
    volumeMounts:
    - {name: files, mountPath: /etc/sluice, readOnly: true}
    {{- if index .flags "ratelimit-config" }}
    - {name: ratelimit, mountPath: /etc/sluice-ratelimit, readOnly: true}
    {{- end }}
    {{- if .data }}
    - {name: data, mountPath: /var/lib/sluice}
    {{- end }}
  volumes:
  - name: files
    projected:
      defaultMode: 0440
      sources:
      - secret: {name: {{ include "sluice.tlsSecret" .root }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
      {{- include "sluice.sources" . | trim | nindent 6 }}
  {{- if index .flags "ratelimit-config" }}
  - name: ratelimit
    configMap: {name: {{ .root.Release.Name }}-ratelimit}
  {{- end }}
  topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sluice.selector" . | nindent 8 }}
  {{- with $part.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* sluice.service is the Service of serve or quota. */}}
{{- define "sluice.service" -}}
{{- $service := (index .root.Values .name).service -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
  {{- with $service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $service.type }}
  selector:
    {{- include "sluice.selector" . | nindent 4 }}
  {{- if .data }}
  publishNotReadyAddresses: true # a damaged store is mended through it
  {{- end }}
  ports:
  - {name: tls-grpc, port: {{ first .ports }}, targetPort: tls-grpc}
  - {name: https, port: {{ last .ports }}, targetPort: https}
{{- end }}

{{/* sluice.disruptionBudget lets one pod of several go at a time. */}}
{{- define "sluice.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "sluice.selector" . | nindent 6 }}
{{- end }}
