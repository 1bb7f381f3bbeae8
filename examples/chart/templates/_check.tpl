{{/* sluice.check fails for values that the schema takes and that cannot work together. */}}
{{- define "sluice.check" -}}
{{- if not (or .Values.serve.enabled .Values.quota.enabled) }}
{{- fail "serve.enabled and quota.enabled are both false: nothing would run" }}
{{- end }}
{{- if and .Values.policies (not .Values.serve.enabled) }}
{{- fail "policies needs serve.enabled: a policy is applied to serve" }}
{{- end }}
{{- if and .Values.policies (not (or (index .Values.apply.flags "token-file") .Values.apply.flags.cert)) }}
{{- fail "policies needs apply.flags.token-file, or apply.flags.cert and cert-key: serve applies a policy only for the role apply" }}
{{- end }}
{{- if and .Values.quota.autoscaling.enabled (lt (int .Values.quota.autoscaling.maxReplicas) (int .Values.quota.replicas)) }}
{{- fail "quota.autoscaling.maxReplicas is less than quota.replicas, which is the least number" }}
{{- end }}
{{- range $name := list "serve" "quota" }}
{{- if (index $.Values $name).enabled }}
{{- $part := dict "root" $ "name" $name }}
{{- $flags := include "sluice.flags" $part | fromYaml }}
{{- $files := include "sluice.files" (merge (dict "flags" $flags) $part) | fromYaml }}
{{- range $flag := list "store" "quota-store" }}
{{- include "sluice.checkURL" (dict "name" $name "flag" $flag "url" (index $flags $flag | default "") "files" $files) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "sluice.checkCalls" .Values.quota.flags }}
{{- end }}

{{/* sluice.checkURL fails for a URL of a store that shows a password, or that names files which the pod does not have. */}}
{{- define "sluice.checkURL" -}}
{{- $where := printf "%s.flags.%s" .name .flag }}
{{- $file := ternary "password_file=/etc/sluice/NAME in the URL and NAME in serve.files" "quota.flags.quota-password-file" (eq .flag "store") }}
{{- if regexMatch "://[^@/]*:[^@/]*@" .url }}
{{- fail (printf "%s has a password, which the pod's arguments would show: give it by %s" $where $file) }}
{{- end }}
{{- if and (regexMatch "^(rediss|valkeys|etcds)[+:]" .url) (not (regexMatch "[?&]ca=" .url)) }}
{{- fail (printf "%s uses TLS, but the image has no certificate authorities: add ?ca=/etc/sluice/NAME to the URL, and NAME to %s.files" $where .name) }}
{{- end }}
{{- range $parameter := regexFindAll "[?&](ca|cert|key|password_file|sentinel_password_file)=[^&]*" .url -1 }}
{{- $path := regexReplaceAll "^[^=]*=" $parameter "" }}
{{- if not (and (hasPrefix "/etc/sluice/" $path) (hasKey $.files (trimPrefix "/etc/sluice/" $path))) }}
{{- fail (printf "%s names the file %s, which the pod does not have: write /etc/sluice/NAME, and give NAME in %s.files" $where $path $.name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* sluice.checkCalls fails for flags of rate limit calls that need others. */}}
{{- define "sluice.checkCalls" -}}
{{- $files := index . "ratelimit-config" }}
{{- $xds := index . "ratelimit-xds" }}
{{- if and $files $xds }}
{{- fail "quota.flags.ratelimit-config and ratelimit-xds exclude each other: the configuration comes from files or from an xDS server" }}
{{- end }}
{{- range $flag := list "ratelimit-merge" "ratelimit-headers" "ratelimit-metadata" }}
{{- if and (hasKey $ $flag) (not (or $files $xds)) }}
{{- fail (printf "quota.flags.%s needs ratelimit-config or ratelimit-xds: without a configuration no rate limit call is answered" $flag) }}
{{- end }}
{{- end }}
{{- end }}
